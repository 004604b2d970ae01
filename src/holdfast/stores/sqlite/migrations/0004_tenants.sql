-- Session ids are unique for each tenant, no longer for the whole store. Events and all else name a
-- session by its key, which stays.
CREATE TABLE new_sessions (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL,
  name TEXT NOT NULL,
  tenant TEXT NOT NULL,
  tenant_key INTEGER NOT NULL REFERENCES tenants (key),
  kind TEXT NOT NULL,
  agent TEXT NOT NULL,
  parent TEXT,
  origin TEXT,
  labels TEXT NOT NULL,
  started_at TEXT NOT NULL,
  imported INTEGER NOT NULL DEFAULT 0,
  owner TEXT,
  epoch INTEGER NOT NULL DEFAULT 0,
  seq INTEGER NOT NULL,
  digest BLOB NOT NULL,
  status TEXT NOT NULL,
  updated_at TEXT NOT NULL,
  turns INTEGER NOT NULL,
  last_turn TEXT,
  head TEXT,
  usd TEXT NOT NULL,
  tokens INTEGER NOT NULL,
  unknown_usd INTEGER NOT NULL,
  UNIQUE (tenant, id)
);
INSERT INTO new_sessions SELECT
  key, id, name, tenant, tenant_key, kind, agent, parent, origin, labels, started_at, imported,
  owner, epoch, seq, digest, status, updated_at, turns, last_turn, head, usd, tokens, unknown_usd
FROM sessions ORDER BY key;
-- No session ever gets the key of one that was deleted.
UPDATE sqlite_sequence SET seq = (SELECT seq FROM sqlite_sequence WHERE name = 'sessions')
WHERE name = 'new_sessions';
INSERT INTO sqlite_sequence (name, seq)
SELECT 'new_sessions', seq FROM sqlite_sequence WHERE name = 'sessions'
  AND NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'new_sessions');
DROP TABLE sessions;
ALTER TABLE new_sessions RENAME TO sessions;
CREATE INDEX sessions_name ON sessions (name);
CREATE INDEX sessions_status ON sessions (status);
CREATE INDEX sessions_tenant ON sessions (tenant, key);
CREATE INDEX sessions_parent ON sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_owner ON sessions (owner) WHERE owner IS NOT NULL;

-- Whose an earlier tombstone is nobody recorded: without a tenant it holds for all.
CREATE TABLE new_tombstones (
  key INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  deleted_at TEXT NOT NULL,
  UNIQUE (id, tenant)
);
INSERT INTO new_tombstones SELECT key, '', id, deleted_at FROM tombstones ORDER BY key;
DROP TABLE tombstones;
ALTER TABLE new_tombstones RENAME TO tombstones;
