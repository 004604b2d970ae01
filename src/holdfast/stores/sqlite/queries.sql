-- Every statement that the SQLite store runs, by name. A part is text that several have in common.

-- name: begin_write
BEGIN IMMEDIATE

-- name: begin_read
BEGIN DEFERRED

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: savepoint
SAVEPOINT job

-- name: release
RELEASE job

-- name: rollback_to
ROLLBACK TO job

-- name: schema_objects
SELECT count(*) FROM sqlite_schema

-- name: list_migrations
SELECT version, checksum FROM migrations ORDER BY version

-- name: insert_migration
INSERT INTO migrations (version, name, checksum, applied_at) VALUES (?, ?, ?, ?)

-- name: is_deleted
SELECT 1 FROM tombstones WHERE id = ? AND tenant IN (?, '')

-- name: insert_tombstone
INSERT INTO tombstones (tenant, id, deleted_at) VALUES (?, ?, ?)

-- name: insert_tenant
INSERT INTO tenants (name) VALUES (?) ON CONFLICT DO NOTHING

-- name: tenant_key
SELECT key FROM tenants WHERE name = ?

-- name: session_row, lock_session
SELECT key, id, tenant, tenant_key, seq, digest, owner, epoch, imported
FROM sessions WHERE tenant = ? AND id = ?

-- name: insert_session
INSERT INTO sessions (
  id, name, tenant, tenant_key, kind, agent, parent, origin, labels, started_at,
  seq, digest, updated_at, status, turns, last_turn, head, usd, tokens, unknown_usd
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING key

-- name: heal_session
UPDATE sessions SET
  name = ?, tenant = ?, tenant_key = ?, kind = ?, agent = ?, parent = ?, origin = ?, labels = ?,
  started_at = ?
WHERE key = ?

-- name: move_session
UPDATE sessions SET
  seq = ?, digest = ?, updated_at = ?, status = ?, turns = ?, last_turn = ?, head = ?, usd = ?,
  tokens = ?, unknown_usd = ?
WHERE key = ?

-- name: name_session
UPDATE sessions SET name = ? WHERE id = ?

-- name: mark_imported
UPDATE sessions SET imported = ? WHERE key = ?

-- name: delete_session
DELETE FROM sessions WHERE key = ?

-- part: session_columns
  s.key, CAST(s.id AS BLOB), CAST(s.name AS BLOB), CAST(s.tenant AS BLOB), CAST(s.kind AS BLOB),
  CAST(s.agent AS BLOB), CAST(s.parent AS BLOB), CAST(s.origin AS BLOB),
  CAST(s.labels AS BLOB), CAST(s.started_at AS BLOB), s.imported, CAST(s.owner AS BLOB),
  s.seq, CAST(s.status AS BLOB), CAST(s.updated_at AS BLOB), s.turns, CAST(s.last_turn AS BLOB),
  CAST(s.head AS BLOB), CAST(s.usd AS BLOB), s.tokens, s.unknown_usd,
  (SELECT count(*) FROM inbox i WHERE i.session = s.key AND i.consumed_seq IS NULL),
  lower(hex(s.digest))

-- part: session_filter
  s.key < :below
  AND (:tenant IS NULL OR s.tenant = :tenant)
  AND (:kind IS NULL OR s.kind = :kind)
  AND (:agent IS NULL OR s.agent = :agent)

-- name: session_info
SELECT {session_columns} FROM sessions s WHERE s.key = ?

-- name: list_sessions
SELECT {session_columns} FROM sessions s WHERE {session_filter}
ORDER BY s.key DESC LIMIT :limit

-- name: list_sessions_by_tenant
SELECT {session_columns} FROM sessions s WHERE s.tenant = :tenant AND {session_filter}
ORDER BY s.key DESC LIMIT :limit

-- name: list_sessions_by_name
SELECT {session_columns} FROM sessions s WHERE s.name = :name AND {session_filter}
ORDER BY s.key DESC LIMIT :limit

-- name: list_sessions_by_status
SELECT {session_columns} FROM sessions s WHERE s.status = :status AND {session_filter}
ORDER BY s.key DESC LIMIT :limit

-- name: list_sessions_by_parent
SELECT {session_columns} FROM sessions s WHERE s.parent = :parent AND {session_filter}
ORDER BY s.key DESC LIMIT :limit

-- name: list_sessions_by_inbox
SELECT {session_columns} FROM sessions s
WHERE s.key IN (SELECT session FROM inbox WHERE consumed_seq IS NULL) AND {session_filter}
ORDER BY s.key DESC LIMIT :limit

-- name: insert_event
INSERT INTO events (session, seq, type, version, at, digest, data) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: events_forward
SELECT seq, CAST(type AS BLOB), version, CAST(at AS BLOB), digest, CAST(data AS BLOB) FROM events
WHERE session = ? AND seq > ? AND seq < ? ORDER BY seq LIMIT ?

-- name: events_backward
SELECT seq, CAST(type AS BLOB), version, CAST(at AS BLOB), digest, CAST(data AS BLOB) FROM events
WHERE session = ? AND seq > ? AND seq < ? ORDER BY seq DESC LIMIT ?

-- name: events_of_types_forward
SELECT seq, CAST(type AS BLOB), version, CAST(at AS BLOB), digest, CAST(data AS BLOB) FROM events
WHERE session = ? AND seq > ? AND seq < ? AND type IN (SELECT value FROM json_each(?))
ORDER BY seq LIMIT ?

-- name: events_of_types_backward
SELECT seq, CAST(type AS BLOB), version, CAST(at AS BLOB), digest, CAST(data AS BLOB) FROM events
WHERE session = ? AND seq > ? AND seq < ? AND type IN (SELECT value FROM json_each(?))
ORDER BY seq DESC LIMIT ?

-- name: event_digest
SELECT digest FROM events WHERE session = ? AND seq = ?

-- name: last_event
SELECT seq, digest FROM events WHERE session = ? ORDER BY seq DESC LIMIT 1

-- name: event_digests
SELECT seq, digest FROM events WHERE session = ?

-- name: heal_event
INSERT INTO events (session, seq, type, version, at, digest, data) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (session, seq) DO UPDATE SET
  type = excluded.type, version = excluded.version, at = excluded.at, digest = excluded.digest,
  data = excluded.data

-- name: rewrite_event
UPDATE events SET data = ? WHERE session = ? AND seq = ?

-- name: delete_events
DELETE FROM events WHERE session = ?

-- name: put_snapshot
INSERT INTO snapshots (session, seq, fold, digest, checksum, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
  seq = excluded.seq, fold = excluded.fold, digest = excluded.digest,
  checksum = excluded.checksum, body = excluded.body

-- name: get_snapshot
SELECT seq, fold, digest, checksum, body FROM snapshots WHERE session = ?

-- name: delete_snapshot
DELETE FROM snapshots WHERE session = ?

-- name: lock_payload
-- There is one writer at a time: its transaction is the lock.
SELECT 1

-- name: insert_payload
INSERT INTO payloads (tenant, id, size, at, data, session, used) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: touch_payload
UPDATE payloads SET at = :at WHERE key = :payload

-- name: heal_payload
UPDATE payloads SET size = :size, data = :data WHERE key = :payload

-- name: find_payload
SELECT p.key, p.size, p.data IS NULL, CASE p.session WHEN :session THEN p.used ELSE r.used END
FROM payloads p LEFT JOIN refs r ON r.payload = p.key AND r.session = :session
WHERE p.tenant = :tenant AND p.id = :id

-- name: payload_data
SELECT data FROM payloads WHERE key = :payload

-- name: payload_exists
SELECT 1 FROM payloads p JOIN tenants t ON t.key = p.tenant WHERE t.name = ? AND p.id = ?

-- name: delete_payload
DELETE FROM payloads WHERE key = :payload

-- name: use_ref
INSERT INTO refs (payload, session, used) VALUES (:payload, :session, 1)
ON CONFLICT DO UPDATE SET used = 1

-- name: mark_first_session
UPDATE payloads SET used = max(used, :used) WHERE key = :payload AND session = :session

-- name: stage_ref
INSERT INTO refs (payload, session, used) VALUES (:payload, :session, 0)
ON CONFLICT DO NOTHING

-- name: is_referred
SELECT 1 FROM payloads p JOIN sessions s ON s.key = p.session WHERE p.key = :payload
UNION ALL SELECT 1 FROM refs WHERE payload = :payload LIMIT 1

-- name: delete_ref
DELETE FROM refs WHERE payload = :payload AND session = :session

-- name: forget_first_session
UPDATE payloads SET session = NULL, used = 0 WHERE key = :payload AND session = :session

-- name: delete_refs_of_session
DELETE FROM refs WHERE session = ?

-- name: unuse_ref
UPDATE refs SET used = 0 WHERE payload = :payload AND session = :session

-- name: unuse_first_session
UPDATE payloads SET used = 0 WHERE key = :payload AND session = :session

-- name: list_stale_refs
SELECT s.tenant, s.id, p.key, p.tenant, p.id, s.key FROM payloads p JOIN sessions s ON s.key = p.session
WHERE p.used = 0 AND p.at <= :cutoff AND (:of IS NULL OR s.tenant = :of)
UNION ALL
SELECT s.tenant, s.id, p.key, p.tenant, p.id, s.key FROM refs r
JOIN payloads p ON p.key = r.payload
JOIN sessions s ON s.key = r.session
WHERE r.used = 0 AND p.at <= :cutoff AND (:of IS NULL OR s.tenant = :of)

-- name: delete_stale_ref
DELETE FROM refs WHERE payload = :payload AND session = :session AND used = 0
  AND payload IN (SELECT key FROM payloads WHERE at <= :cutoff)

-- name: forget_stale_first_session
UPDATE payloads SET session = NULL
WHERE key = :payload AND session = :session AND used = 0 AND at <= :cutoff

-- name: find_orphans
SELECT p.key, p.tenant, t.name, p.id, p.size, p.data IS NULL
FROM payloads p JOIN tenants t ON t.key = p.tenant
WHERE p.at <= :cutoff AND p.key > :payload AND (:of IS NULL OR t.name = :of)
  AND NOT EXISTS (
    SELECT 1 FROM sessions s WHERE s.key = p.session
      AND p.tenant || ' ' || lower(hex(p.id)) || ' ' || s.key
        NOT IN (SELECT value FROM json_each(:gone))
  )
  AND NOT EXISTS (
    SELECT 1 FROM refs r WHERE r.payload = p.key
      AND p.tenant || ' ' || lower(hex(p.id)) || ' ' || r.session
        NOT IN (SELECT value FROM json_each(:gone))
  )
ORDER BY p.key LIMIT :limit

-- name: count_payloads
SELECT count(*) FROM payloads p JOIN tenants t ON t.key = p.tenant WHERE ?1 IS NULL OR t.name = ?1

-- name: put_erasure
INSERT INTO erasures (session, payload, at, rule) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET at = excluded.at, rule = excluded.rule

-- name: get_erasure
SELECT at, rule FROM erasures WHERE session = ? AND payload = ?

-- name: list_erasures
SELECT payload, at, rule FROM erasures WHERE session = ? ORDER BY at, payload

-- name: delete_erasures
DELETE FROM erasures WHERE session = ?

-- name: insert_inbox
INSERT INTO inbox (session, name, kind, at, call_id, content, wait, asked_by)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- part: inbox_columns
  name, kind, at, call_id, content, consumed_seq, wait, asked_by

-- name: find_inbox
SELECT {inbox_columns} FROM inbox WHERE session = ? AND name = ?

-- name: find_inbox_decision
SELECT {inbox_columns} FROM inbox
WHERE session = ? AND call_id = ? AND coalesce(wait, 0) = coalesce(?, 0)
  AND kind IN ('answer', 'expiry')

-- name: list_inbox
SELECT {inbox_columns} FROM inbox WHERE session = ? ORDER BY key

-- name: count_inbox
SELECT count(*) FROM inbox WHERE session = ? AND consumed_seq IS NULL

-- name: consume_inbox
UPDATE inbox SET consumed_seq = ? WHERE session = ? AND name = ?

-- name: rewrite_inbox
UPDATE inbox SET content = ? WHERE session = ? AND name = ?

-- name: delete_inbox
DELETE FROM inbox WHERE session = ?

-- name: put_owner
INSERT INTO owners (id, host, boot, namespace, pid, started, ticks, wall, seconds)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET ticks = excluded.ticks, wall = excluded.wall, seconds = excluded.seconds

-- part: owner_columns
  id, host, boot, namespace, pid, started, ticks, wall, seconds

-- name: get_owner
SELECT {owner_columns} FROM owners WHERE id = ?

-- name: list_owners
SELECT {owner_columns} FROM owners
WHERE id NOT IN (SELECT owner FROM sessions WHERE owner IS NOT NULL)

-- name: delete_owner
DELETE FROM owners WHERE id = ?

-- name: take_lease
UPDATE sessions SET owner = ?, epoch = ?, imported = 0 WHERE key = ?

-- name: release_lease
UPDATE sessions SET owner = NULL WHERE tenant = ? AND id = ? AND owner = ? AND epoch = ?

-- name: holds_lease
SELECT 1 FROM sessions WHERE owner = ? LIMIT 1

-- name: release_owner
UPDATE sessions SET owner = NULL WHERE owner = ?

-- name: latest
SELECT
  (SELECT max(key) FROM events), (SELECT max(key) FROM inbox), (SELECT max(key) FROM tombstones)

-- name: moved_sessions
SELECT tenant, id, seq FROM sessions WHERE key IN (
  SELECT session FROM events WHERE key > ?
  UNION SELECT session FROM inbox WHERE key > ?
)

-- name: all_sessions
SELECT tenant, id, seq FROM sessions

-- name: deleted_sessions
SELECT tenant, id, 0 FROM tombstones WHERE key > ?

-- name: put_pending
INSERT INTO pending_calls (
  session, call_id, name, wait, kind, seq, since, deadline, due_at, assignee
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: move_pending
UPDATE pending_calls SET deadline = ?, due_at = ?, assignee = ? WHERE session = ? AND call_id = ?

-- name: delete_pending
DELETE FROM pending_calls WHERE session = ? AND call_id = ?

-- name: delete_pending_of_session
DELETE FROM pending_calls WHERE session = ?

-- name: find_pending
SELECT wait, due_at FROM pending_calls WHERE session = ? AND call_id = ?

-- name: pending_of_session
SELECT call_id, name, wait, kind, seq, since, deadline, due_at, assignee FROM pending_calls
WHERE session = ? ORDER BY key

-- name: sessions_without_pending
SELECT tenant, id FROM sessions
WHERE status = 'suspended' AND key NOT IN (SELECT session FROM pending_calls)

-- part: pending_columns
  p.key, s.id, s.tenant, s.agent, p.call_id, p.name, p.wait, p.kind, p.since, p.seq, p.deadline,
  p.assignee, CAST(e.data AS BLOB)

-- part: pending_rows
  pending_calls p
  JOIN sessions s ON s.key = p.session
  LEFT JOIN events e ON e.session = p.session AND e.seq = p.seq

-- part: pending_filter
  p.key > :after
  AND (:tenant IS NULL OR s.tenant = :tenant)
  AND (:session IS NULL OR s.id = :session)
  AND (:kind IS NULL OR p.kind = :kind)
  AND (:assignee IS NULL OR p.assignee = :assignee)
  AND (:agent IS NULL OR s.agent = :agent)
  AND (:due IS NULL OR p.due_at <= :due)

-- name: list_pending
SELECT {pending_columns} FROM {pending_rows} WHERE {pending_filter} ORDER BY p.key LIMIT :limit

-- name: list_pending_by_due
SELECT {pending_columns} FROM {pending_rows}
WHERE p.key IN (SELECT key FROM pending_calls WHERE due_at <= :due) AND {pending_filter}
ORDER BY p.key LIMIT :limit

-- name: list_pending_by_session
SELECT {pending_columns} FROM {pending_rows}
WHERE p.session IN (
  SELECT key FROM sessions WHERE id = :session AND (:tenant IS NULL OR tenant = :tenant)
) AND {pending_filter}
ORDER BY p.key LIMIT :limit

-- name: list_pending_by_assignee
SELECT {pending_columns} FROM {pending_rows}
WHERE p.key IN (SELECT key FROM pending_calls WHERE assignee = :assignee) AND {pending_filter}
ORDER BY p.key LIMIT :limit

-- name: all_owners
SELECT {owner_columns} FROM owners

-- name: list_work_due
SELECT
  s.key, s.id, s.tenant, s.agent,
  EXISTS (SELECT 1 FROM inbox i WHERE i.session = s.key AND i.consumed_seq IS NULL),
  EXISTS (SELECT 1 FROM pending_calls p WHERE p.session = s.key AND p.due_at <= :now),
  s.status IN ('running', 'stop_requested')
FROM sessions s
WHERE s.key > :after
  AND s.key IN (
    SELECT session FROM inbox WHERE consumed_seq IS NULL
    UNION SELECT session FROM pending_calls WHERE due_at <= :now
    UNION SELECT key FROM sessions WHERE status IN ('running', 'stop_requested')
  )
  AND (:tenant IS NULL OR s.tenant = :tenant)
  AND s.imported = 0
  AND s.status NOT IN ('stopped', 'failed')
  AND (s.owner IS NULL OR s.owner NOT IN (SELECT value FROM json_each(:live)))
ORDER BY s.key LIMIT :limit

-- name: last_audit
SELECT max(number) FROM audit WHERE session = ?

-- name: insert_audit
INSERT INTO audit (session, number, at, record) VALUES (?, ?, ?, ?)

-- name: list_audit
SELECT number, at, record FROM audit WHERE session = ? AND number > ? ORDER BY number LIMIT ?

-- name: delete_audit
DELETE FROM audit WHERE session = ?

-- name: delete_old_audit
DELETE FROM audit WHERE at < :before
  AND (:of IS NULL OR session IN (SELECT key FROM sessions WHERE tenant = :of))

-- name: delete_surplus_audit
DELETE FROM audit WHERE (session, number) IN (
  SELECT session, number FROM (
    SELECT session, number,
      row_number() OVER (PARTITION BY session ORDER BY number DESC) AS place
    FROM audit
    WHERE :of IS NULL OR session IN (SELECT key FROM sessions WHERE tenant = :of)
  ) WHERE place > :keep
)
