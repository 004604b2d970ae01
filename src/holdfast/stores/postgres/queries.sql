-- Every statement that the PostgreSQL store runs, by name. A part is text that several have in
-- common; {schema} is the schema of the store.

-- name: begin_write
BEGIN

-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: limit_time
-- For one transaction, because behind a pooler a connection is another one in the next.
SELECT set_config('statement_timeout', %s, true),
  set_config('idle_in_transaction_session_timeout', %s, true)

-- name: enter_writing
-- Whoever takes payloads away waits until all others are out. The number of the transaction tells
-- later what became of a commit whose answer was lost.
SELECT pg_current_xact_id()::text, pg_advisory_xact_lock_shared(%s)

-- name: enter_collecting
SELECT pg_current_xact_id()::text, pg_advisory_xact_lock(%s)

-- name: transaction_status
SELECT pg_xact_status(%s::xid8)

-- name: clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: server_version
SELECT current_setting('server_version_num')::integer

-- name: lock_migrations
SELECT pg_advisory_xact_lock(%s)

-- name: schema_exists
-- Not by to_regnamespace and to_regclass: those may answer from a cache of before the lock.
SELECT count(*) FROM pg_namespace WHERE nspname = %s

-- name: schema_objects
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s

-- name: migrations_exist
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = 'migrations'

-- name: create_schema
CREATE SCHEMA {schema}

-- name: list_migrations
SELECT version, checksum FROM {schema}.migrations ORDER BY version

-- name: insert_migration
INSERT INTO {schema}.migrations (version, name, checksum, applied_at) VALUES (%s, %s, %s, %s)

-- name: get_setting
SELECT value FROM {schema}.settings WHERE name = %s

-- name: put_setting
INSERT INTO {schema}.settings (name, value) VALUES (%s, %s) ON CONFLICT DO NOTHING

-- name: set_setting
INSERT INTO {schema}.settings (name, value) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: is_deleted
SELECT 1 FROM {schema}.tombstones WHERE id = %s AND tenant IN (%s, '')

-- name: insert_tombstone
INSERT INTO {schema}.tombstones (tenant, id, deleted_at) VALUES (%s, %s, %s)

-- name: insert_tenant
INSERT INTO {schema}.tenants (name) VALUES (%s) ON CONFLICT DO NOTHING

-- name: tenant_key
SELECT key FROM {schema}.tenants WHERE name = %s

-- part: session_row
SELECT key, id, tenant, tenant_key, seq, digest, owner, epoch, imported
FROM {schema}.sessions WHERE tenant = %s AND id = %s

-- name: session_row
{session_row}

-- name: lock_session
{session_row} FOR NO KEY UPDATE

-- name: insert_session
INSERT INTO {schema}.sessions (
  id, name, tenant, tenant_key, kind, agent, parent, origin, labels, started_at,
  seq, digest, updated_at, status, turns, last_turn, head, usd, tokens, unknown_usd
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
RETURNING key

-- name: heal_session
UPDATE {schema}.sessions SET
  name = %s, tenant = %s, tenant_key = %s, kind = %s, agent = %s, parent = %s, origin = %s,
  labels = %s, started_at = %s
WHERE key = %s

-- name: move_session
UPDATE {schema}.sessions SET
  seq = %s, digest = %s, updated_at = %s, status = %s, turns = %s, last_turn = %s, head = %s,
  usd = %s, tokens = %s, unknown_usd = %s, moved = pg_current_xact_id()::text::bigint
WHERE key = %s

-- name: mark_imported
UPDATE {schema}.sessions SET imported = %s WHERE key = %s

-- name: delete_session
DELETE FROM {schema}.sessions WHERE key = %s

-- part: session_columns
s.key, s.id, s.name, s.tenant, s.kind, s.agent, s.parent, s.origin, s.labels, s.started_at,
  s.imported, s.owner, s.seq, s.status, s.updated_at, s.turns, s.last_turn, s.head, s.usd,
  s.tokens, s.unknown_usd,
  (SELECT count(*) FROM {schema}.inbox i WHERE i.session = s.key AND i.consumed_seq IS NULL),
  encode(s.digest, 'hex')

-- part: session_filter
s.key < %(below)s
  AND (%(tenant)s::text IS NULL OR s.tenant = %(tenant)s)
  AND (%(kind)s::text IS NULL OR s.kind = %(kind)s)
  AND (%(agent)s::text IS NULL OR s.agent = %(agent)s)

-- name: session_info
SELECT {session_columns} FROM {schema}.sessions s WHERE s.key = %s

-- name: list_sessions
SELECT {session_columns} FROM {schema}.sessions s WHERE {session_filter}
ORDER BY s.key DESC LIMIT %(limit)s

-- name: list_sessions_by_tenant
SELECT {session_columns} FROM {schema}.sessions s WHERE s.tenant = %(tenant)s AND {session_filter}
ORDER BY s.key DESC LIMIT %(limit)s

-- name: list_sessions_by_name
SELECT {session_columns} FROM {schema}.sessions s WHERE s.name = %(name)s AND {session_filter}
ORDER BY s.key DESC LIMIT %(limit)s

-- name: list_sessions_by_status
SELECT {session_columns} FROM {schema}.sessions s WHERE s.status = %(status)s AND {session_filter}
ORDER BY s.key DESC LIMIT %(limit)s

-- name: list_sessions_by_parent
SELECT {session_columns} FROM {schema}.sessions s WHERE s.parent = %(parent)s AND {session_filter}
ORDER BY s.key DESC LIMIT %(limit)s

-- name: list_sessions_by_inbox
SELECT {session_columns} FROM {schema}.sessions s
WHERE s.key IN (SELECT session FROM {schema}.inbox WHERE consumed_seq IS NULL) AND {session_filter}
ORDER BY s.key DESC LIMIT %(limit)s

-- name: insert_event
INSERT INTO {schema}.events (session, seq, type, version, at, digest, data)
SELECT * FROM unnest(
  %s::bigint[], %s::bigint[], %s::text[], %s::integer[], %s::text[], %s::bytea[], %s::text[]
)

-- name: events_forward
SELECT seq, type, version, at, digest, data FROM {schema}.events
WHERE session = %s AND seq > %s AND seq < %s ORDER BY seq LIMIT %s

-- name: events_backward
SELECT seq, type, version, at, digest, data FROM {schema}.events
WHERE session = %s AND seq > %s AND seq < %s ORDER BY seq DESC LIMIT %s

-- name: events_of_types_forward
SELECT seq, type, version, at, digest, data FROM {schema}.events
WHERE session = %s AND seq > %s AND seq < %s AND type IN (SELECT json_array_elements_text(%s::json))
ORDER BY seq LIMIT %s

-- name: events_of_types_backward
SELECT seq, type, version, at, digest, data FROM {schema}.events
WHERE session = %s AND seq > %s AND seq < %s AND type IN (SELECT json_array_elements_text(%s::json))
ORDER BY seq DESC LIMIT %s

-- name: event_digest
SELECT digest FROM {schema}.events WHERE session = %s AND seq = %s

-- name: last_event
SELECT seq, digest FROM {schema}.events WHERE session = %s ORDER BY seq DESC LIMIT 1

-- name: event_digests
SELECT seq, digest FROM {schema}.events WHERE session = %s

-- name: heal_event
INSERT INTO {schema}.events (session, seq, type, version, at, digest, data)
SELECT * FROM unnest(
  %s::bigint[], %s::bigint[], %s::text[], %s::integer[], %s::text[], %s::bytea[], %s::text[]
)
ON CONFLICT (session, seq) DO UPDATE SET
  type = excluded.type, version = excluded.version, at = excluded.at, digest = excluded.digest,
  data = excluded.data

-- name: rewrite_event
UPDATE {schema}.events SET data = %s WHERE session = %s AND seq = %s

-- name: delete_events
DELETE FROM {schema}.events WHERE session = %s

-- name: put_snapshot
INSERT INTO {schema}.snapshots (session, seq, fold, digest, checksum, body)
VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (session) DO UPDATE SET
  seq = excluded.seq, fold = excluded.fold, digest = excluded.digest,
  checksum = excluded.checksum, body = excluded.body

-- name: get_snapshot
SELECT seq, fold, digest, checksum, body FROM {schema}.snapshots WHERE session = %s

-- name: delete_snapshot
DELETE FROM {schema}.snapshots WHERE session = %s

-- name: lock_payload
SELECT pg_advisory_xact_lock(
  hashtextextended(%(tenant)s::text || encode(%(id)s::bytea, 'hex'), {seed})
)

-- name: insert_payload
INSERT INTO {schema}.payloads (tenant, id, size, at, data, session, used)
VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING RETURNING 1

-- part: payload_key
tenant = %(tenant)s AND id = %(id)s

-- name: touch_payload
UPDATE {schema}.payloads SET at = %(at)s WHERE {payload_key}

-- name: heal_payload
UPDATE {schema}.payloads SET size = %(size)s, data = %(data)s WHERE {payload_key}

-- name: find_payload
-- Payloads have no key but tenant and id.
SELECT 0, p.size, p.data IS NULL, CASE p.session WHEN %(session)s THEN p.used ELSE r.used END
FROM {schema}.payloads p
LEFT JOIN {schema}.refs r ON r.tenant = p.tenant AND r.id = p.id AND r.session = %(session)s
WHERE p.tenant = %(tenant)s AND p.id = %(id)s

-- name: payload_data
SELECT data FROM {schema}.payloads WHERE {payload_key}

-- name: payload_exists
SELECT 1 FROM {schema}.payloads p JOIN {schema}.tenants t ON t.key = p.tenant
WHERE t.name = %s AND p.id = %s

-- name: delete_payload
DELETE FROM {schema}.payloads WHERE {payload_key}

-- name: use_ref
INSERT INTO {schema}.refs (tenant, id, session, used) VALUES (%(tenant)s, %(id)s, %(session)s, 1)
ON CONFLICT (tenant, id, session) DO UPDATE SET used = 1

-- name: mark_first_session
UPDATE {schema}.payloads SET used = greatest(used, %(used)s)
WHERE {payload_key} AND session = %(session)s RETURNING 1

-- name: stage_ref
INSERT INTO {schema}.refs (tenant, id, session, used) VALUES (%(tenant)s, %(id)s, %(session)s, 0)
ON CONFLICT DO NOTHING

-- name: is_referred
SELECT 1 FROM {schema}.payloads p JOIN {schema}.sessions s ON s.key = p.session
WHERE p.tenant = %(tenant)s AND p.id = %(id)s
UNION ALL SELECT 1 FROM {schema}.refs WHERE {payload_key} LIMIT 1

-- name: delete_ref
DELETE FROM {schema}.refs WHERE {payload_key} AND session = %(session)s

-- name: forget_first_session
UPDATE {schema}.payloads SET session = NULL, used = 0
WHERE {payload_key} AND session = %(session)s

-- name: delete_refs_of_session
DELETE FROM {schema}.refs WHERE session = %s

-- name: unuse_ref
UPDATE {schema}.refs SET used = 0 WHERE {payload_key} AND session = %(session)s

-- name: unuse_first_session
UPDATE {schema}.payloads SET used = 0 WHERE {payload_key} AND session = %(session)s

-- name: list_stale_refs
SELECT s.tenant, s.id, 0, p.tenant, p.id, s.key
FROM {schema}.payloads p JOIN {schema}.sessions s ON s.key = p.session
WHERE p.used = 0 AND p.at <= %(cutoff)s AND (%(of)s::text IS NULL OR s.tenant = %(of)s)
UNION ALL
SELECT s.tenant, s.id, 0, p.tenant, p.id, s.key FROM {schema}.refs r
JOIN {schema}.payloads p ON p.tenant = r.tenant AND p.id = r.id
JOIN {schema}.sessions s ON s.key = r.session
WHERE r.used = 0 AND p.at <= %(cutoff)s AND (%(of)s::text IS NULL OR s.tenant = %(of)s)

-- name: delete_stale_ref
DELETE FROM {schema}.refs r USING {schema}.payloads p
WHERE r.tenant = %(tenant)s AND r.id = %(id)s AND r.session = %(session)s AND r.used = 0
  AND p.tenant = r.tenant AND p.id = r.id AND p.at <= %(cutoff)s

-- name: forget_stale_first_session
UPDATE {schema}.payloads SET session = NULL
WHERE {payload_key} AND session = %(session)s AND used = 0 AND at <= %(cutoff)s

-- name: find_orphans
WITH gone (ref) AS (SELECT json_array_elements_text(%(gone)s::json))
SELECT 0, p.tenant, t.name, p.id, p.size, p.data IS NULL
FROM {schema}.payloads p JOIN {schema}.tenants t ON t.key = p.tenant
WHERE p.at <= %(cutoff)s AND (p.tenant, p.id) > (%(tenant)s, %(id)s)
  AND (%(of)s::text IS NULL OR t.name = %(of)s)
  AND NOT EXISTS (
    SELECT 1 FROM {schema}.sessions s WHERE s.key = p.session
      AND p.tenant || ' ' || encode(p.id, 'hex') || ' ' || s.key NOT IN (SELECT ref FROM gone)
  )
  AND NOT EXISTS (
    SELECT 1 FROM {schema}.refs r WHERE r.tenant = p.tenant AND r.id = p.id
      AND p.tenant || ' ' || encode(p.id, 'hex') || ' ' || r.session NOT IN (SELECT ref FROM gone)
  )
ORDER BY p.tenant, p.id LIMIT %(limit)s

-- name: count_payloads
SELECT count(*) FROM {schema}.payloads p JOIN {schema}.tenants t ON t.key = p.tenant
WHERE t.name = coalesce(%s::text, t.name)

-- name: has_blob
SELECT 1 FROM {schema}.blobs WHERE tenant = %s AND id = %s

-- name: read_blob
SELECT data FROM {schema}.blobs WHERE tenant = %s AND id = %s

-- name: put_blob
INSERT INTO {schema}.blobs (tenant, id, data, at) VALUES (%s, %s, %s, %s)
ON CONFLICT (tenant, id) DO UPDATE SET data = excluded.data, at = excluded.at

-- name: remove_blob
DELETE FROM {schema}.blobs WHERE tenant = %s AND id = %s

-- name: list_blobs
SELECT tenant, id, octet_length(data), at FROM {schema}.blobs

-- name: put_erasure
INSERT INTO {schema}.erasures (session, payload, at, rule) VALUES (%s, %s, %s, %s)
ON CONFLICT (session, payload) DO UPDATE SET at = excluded.at, rule = excluded.rule

-- name: get_erasure
SELECT at, rule FROM {schema}.erasures WHERE session = %s AND payload = %s

-- name: list_erasures
SELECT payload, at, rule FROM {schema}.erasures WHERE session = %s ORDER BY at, payload

-- name: delete_erasures
DELETE FROM {schema}.erasures WHERE session = %s

-- part: queue
-- The same as `queue_of` in Python: short enough for the name of a channel.
'hf_' || left(md5('{schema}/' || s.tenant), 24)

-- part: wake_up
-- A job says that a session may have work. Without a worker there are none: its first sweep finds
-- all. One job for each session and cause waits at a time.
INSERT INTO {schema}.procrastinate_jobs (queue_name, task_name, args, queueing_lock, scheduled_at)

-- part: once_each
EXISTS (SELECT 1 FROM {schema}.procrastinate_workers)
ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING

-- name: insert_inbox
WITH item AS (
  INSERT INTO {schema}.inbox (session, name, kind, at, call_id, content, wait, asked_by)
  VALUES (%s, %s, %s, %s, %s, %s, %s, %s) RETURNING session
)
{wake_up}
SELECT {queue}, 'wake', jsonb_build_object('session', s.id), 'inbox ' || {queue} || s.key, NULL
FROM item JOIN {schema}.sessions s ON s.key = item.session WHERE {once_each}

-- part: inbox_columns
name, kind, at, call_id, content, consumed_seq, wait, asked_by

-- name: find_inbox
SELECT {inbox_columns} FROM {schema}.inbox WHERE session = %s AND name = %s

-- name: find_inbox_decision
SELECT {inbox_columns} FROM {schema}.inbox
WHERE session = %s AND call_id = %s AND coalesce(wait, 0) = coalesce(%s::bigint, 0)
  AND kind IN ('answer', 'expiry')

-- name: list_inbox
SELECT {inbox_columns} FROM {schema}.inbox WHERE session = %s ORDER BY key

-- name: count_inbox
SELECT count(*) FROM {schema}.inbox WHERE session = %s AND consumed_seq IS NULL

-- name: consume_inbox
UPDATE {schema}.inbox SET consumed_seq = %s WHERE session = %s AND name = %s

-- name: rewrite_inbox
UPDATE {schema}.inbox SET content = %s WHERE session = %s AND name = %s

-- name: delete_inbox
DELETE FROM {schema}.inbox WHERE session = %s

-- name: put_owner
INSERT INTO {schema}.owners (id, host, boot, namespace, pid, started, ticks, wall, seconds)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (id) DO UPDATE SET ticks = excluded.ticks, wall = excluded.wall, seconds = excluded.seconds

-- part: owner_columns
id, host, boot, namespace, pid, started, ticks, wall, seconds

-- name: get_owner
SELECT {owner_columns} FROM {schema}.owners WHERE id = %s

-- name: list_owners
SELECT {owner_columns} FROM {schema}.owners
WHERE id NOT IN (SELECT owner FROM {schema}.sessions WHERE owner IS NOT NULL)

-- name: delete_owner
DELETE FROM {schema}.owners WHERE id = %s

-- name: take_lease
UPDATE {schema}.sessions SET owner = %s, epoch = %s, imported = 0 WHERE key = %s

-- name: release_lease
WITH s AS (
  UPDATE {schema}.sessions SET owner = NULL
  WHERE tenant = %s AND id = %s AND owner = %s AND epoch = %s
  RETURNING tenant, id, key, status
)
{wake_up}
SELECT {queue}, 'wake', jsonb_build_object('session', s.id), 'open ' || {queue} || s.key, NULL
FROM s WHERE s.status IN ('running', 'stop_requested') AND {once_each}

-- name: holds_lease
SELECT 1 FROM {schema}.sessions WHERE owner = %s LIMIT 1

-- name: release_owner
WITH s AS (
  UPDATE {schema}.sessions SET owner = NULL WHERE owner = %s RETURNING tenant, id, key, status
)
{wake_up}
SELECT {queue}, 'wake', jsonb_build_object('session', s.id), 'open ' || {queue} || s.key, NULL
FROM s WHERE s.status IN ('running', 'stop_requested') AND {once_each}

-- name: wake_sessions
{wake_up}
SELECT {queue}, 'wake', jsonb_build_object('session', s.id), 'found ' || {queue} || s.key, NULL
FROM unnest(%s::text[]) given (id) JOIN {schema}.sessions s ON s.tenant = %s AND s.id = given.id
WHERE {once_each}

-- name: notify_queues
SELECT pg_notify('procrastinate_queue_v1#' || given.name, json_build_object('type', 'job_inserted', 'job_id', 0)::text)
FROM unnest(%s::text[]) given (name) WHERE EXISTS (
  SELECT 1 FROM {schema}.procrastinate_jobs j WHERE j.status = 'todo' AND j.queue_name = given.name
)

-- part: deadline_job
{wake_up}
SELECT {queue}, 'wake', jsonb_build_object('session', s.id),
  'due ' || waits.due_at || ' ' || {queue} || s.key, to_timestamp(waits.due_at / 1000.0)
FROM waits JOIN {schema}.sessions s ON s.key = waits.session
WHERE waits.due_at IS NOT NULL AND {once_each}

-- name: put_pending
WITH waits AS (
  INSERT INTO {schema}.pending_calls (
    session, call_id, name, wait, kind, seq, since, deadline, due_at, assignee
  ) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING session, due_at
)
{deadline_job}

-- name: move_pending
WITH waits AS (
  UPDATE {schema}.pending_calls SET deadline = %s, due_at = %s, assignee = %s
  WHERE session = %s AND call_id = %s RETURNING session, due_at
)
{deadline_job}

-- name: delete_pending
DELETE FROM {schema}.pending_calls WHERE session = %s AND call_id = %s

-- name: delete_pending_of_session
DELETE FROM {schema}.pending_calls WHERE session = %s

-- name: find_pending
SELECT wait, due_at FROM {schema}.pending_calls WHERE session = %s AND call_id = %s

-- name: pending_of_session
SELECT call_id, name, wait, kind, seq, since, deadline, due_at, assignee FROM {schema}.pending_calls
WHERE session = %s ORDER BY key

-- name: sessions_without_pending
SELECT s.tenant, s.id FROM {schema}.sessions s WHERE s.status = 'suspended'
  AND NOT EXISTS (SELECT 1 FROM {schema}.pending_calls p WHERE p.session = s.key)

-- part: pending_columns
p.key, s.id, s.tenant, s.agent, p.call_id, p.name, p.wait, p.kind, p.since, p.seq, p.deadline,
  p.assignee, e.data

-- part: pending_rows
{schema}.pending_calls p
  JOIN {schema}.sessions s ON s.key = p.session
  LEFT JOIN {schema}.events e ON e.session = p.session AND e.seq = p.seq

-- part: pending_filter
p.key > %(after)s
  AND (%(tenant)s::text IS NULL OR s.tenant = %(tenant)s)
  AND (%(session)s::text IS NULL OR s.id = %(session)s)
  AND (%(kind)s::text IS NULL OR p.kind = %(kind)s)
  AND (%(assignee)s::text IS NULL OR p.assignee = %(assignee)s)
  AND (%(agent)s::text IS NULL OR s.agent = %(agent)s)
  AND (%(due)s::bigint IS NULL OR p.due_at <= %(due)s)

-- name: list_pending
SELECT {pending_columns} FROM {pending_rows} WHERE {pending_filter} ORDER BY p.key LIMIT %(limit)s

-- name: list_pending_by_due
SELECT {pending_columns} FROM {pending_rows}
WHERE p.key IN (SELECT key FROM {schema}.pending_calls WHERE due_at <= %(due)s) AND {pending_filter}
ORDER BY p.key LIMIT %(limit)s

-- name: list_pending_by_session
SELECT {pending_columns} FROM {pending_rows}
WHERE p.session IN (
  SELECT key FROM {schema}.sessions
  WHERE id = %(session)s AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
) AND {pending_filter}
ORDER BY p.key LIMIT %(limit)s

-- name: list_pending_by_assignee
SELECT {pending_columns} FROM {pending_rows}
WHERE p.key IN (SELECT key FROM {schema}.pending_calls WHERE assignee = %(assignee)s)
  AND {pending_filter}
ORDER BY p.key LIMIT %(limit)s

-- name: all_owners
SELECT {owner_columns} FROM {schema}.owners

-- name: list_work_due
SELECT
  s.key, s.id, s.tenant, s.agent,
  EXISTS (SELECT 1 FROM {schema}.inbox i WHERE i.session = s.key AND i.consumed_seq IS NULL),
  EXISTS (SELECT 1 FROM {schema}.pending_calls p WHERE p.session = s.key AND p.due_at <= %(now)s),
  s.status IN ('running', 'stop_requested')
FROM {schema}.sessions s
WHERE s.key > %(after)s
  AND s.key IN (
    SELECT session FROM {schema}.inbox WHERE consumed_seq IS NULL
    UNION SELECT session FROM {schema}.pending_calls WHERE due_at <= %(now)s
    UNION SELECT key FROM {schema}.sessions WHERE status IN ('running', 'stop_requested')
  )
  AND (%(tenant)s::text IS NULL OR s.tenant = %(tenant)s)
  AND s.imported = 0
  AND s.status NOT IN ('stopped', 'failed')
  AND (s.owner IS NULL OR s.owner NOT IN (SELECT json_array_elements_text(%(live)s::json)))
ORDER BY s.key LIMIT %(limit)s

-- name: snapshot_start
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint

-- name: moved_sessions
-- Every transaction that became visible since the last look has a number from there on; what was
-- seen then may come again.
SELECT 's', tenant, id, seq, moved FROM {schema}.sessions WHERE moved >= %(since)s
UNION ALL
SELECT 'i', s.tenant, s.id, s.seq, i.moved FROM {schema}.inbox i
JOIN {schema}.sessions s ON s.key = i.session WHERE i.moved >= %(since)s
UNION ALL
SELECT 't', tenant, id, 0, moved FROM {schema}.tombstones WHERE moved >= %(since)s

-- name: last_audit
SELECT max(number) FROM {schema}.audit WHERE session = %s

-- name: insert_audit
INSERT INTO {schema}.audit (session, number, at, record) VALUES (%s, %s, %s, %s)

-- name: list_audit
SELECT number, at, record FROM {schema}.audit
WHERE session = %s AND number > %s ORDER BY number LIMIT %s

-- name: delete_audit
DELETE FROM {schema}.audit WHERE session = %s

-- part: audit_filter
(%(of)s::text IS NULL OR session IN (SELECT key FROM {schema}.sessions WHERE tenant = %(of)s))

-- name: delete_old_audit
DELETE FROM {schema}.audit WHERE at < %(before)s AND {audit_filter} RETURNING 1

-- name: delete_surplus_audit
DELETE FROM {schema}.audit WHERE (session, number) IN (
  SELECT session, number FROM (
    SELECT session, number,
      row_number() OVER (PARTITION BY session ORDER BY number DESC) AS place
    FROM {schema}.audit WHERE {audit_filter}
  ) numbered WHERE place > %(keep)s
) RETURNING 1

-- name: count_jobs
SELECT
  count(*) FILTER (WHERE j.status = 'todo' AND coalesce(j.scheduled_at, now()) <= now()),
  count(*) FILTER (WHERE j.status = 'todo' AND j.scheduled_at > now()),
  count(*) FILTER (WHERE j.status = 'doing'),
  count(*) FILTER (
    WHERE j.status = 'doing' AND coalesce(w.last_heartbeat, '-infinity') < now() - interval '30 s'
  )
FROM {schema}.procrastinate_jobs j
LEFT JOIN {schema}.procrastinate_workers w ON w.id = j.worker_id

-- name: count_workers
SELECT count(*) FROM {schema}.procrastinate_workers
WHERE last_heartbeat >= now() - interval '30 s'

-- name: leases_by_owner
SELECT owner, count(*) FROM {schema}.sessions WHERE owner IS NOT NULL GROUP BY owner

-- name: table_sizes
SELECT c.relname, greatest(c.reltuples, 0)::bigint, pg_table_size(c.oid), pg_indexes_size(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p') ORDER BY pg_total_relation_size(c.oid) DESC

-- name: count_connections
SELECT
  (SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'holdfast%%'),
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
  current_setting('max_connections')::bigint
