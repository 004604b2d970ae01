-- Rowid tables with small integer keys: event and payload bodies stay out of the indexes.

CREATE TABLE migrations (
  version INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  checksum TEXT NOT NULL,
  applied_at TEXT NOT NULL
);

CREATE TABLE tenants (
  key INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
);

-- The moving columns repeat what the log says at its tip; they change with it, in one transaction.
CREATE TABLE sessions (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
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
  unknown_usd INTEGER NOT NULL
);
CREATE INDEX sessions_parent ON sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_owner ON sessions (owner) WHERE owner IS NOT NULL;

CREATE TABLE tombstones (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  deleted_at TEXT NOT NULL
);

CREATE TABLE events (
  key INTEGER PRIMARY KEY,
  session INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  type TEXT NOT NULL,
  version INTEGER NOT NULL,
  at TEXT NOT NULL,
  digest BLOB NOT NULL,
  data TEXT NOT NULL,
  UNIQUE (session, seq)
);

-- Derived: dropping every row costs only time.
CREATE TABLE snapshots (
  session INTEGER PRIMARY KEY,
  seq INTEGER NOT NULL,
  fold INTEGER NOT NULL,
  digest BLOB NOT NULL,
  checksum BLOB NOT NULL,
  body BLOB NOT NULL
);

-- `data` is null for payloads that are blob files; `at` is milliseconds since the epoch.
CREATE TABLE payloads (
  key INTEGER PRIMARY KEY,
  tenant INTEGER NOT NULL,
  id BLOB NOT NULL,
  size INTEGER NOT NULL,
  at INTEGER NOT NULL,
  data BLOB,
  UNIQUE (tenant, id)
);

-- Who may read what. A ref is `used` once an event or an inbox item refers to the payload; before
-- that it only says that the session has put it, and gc may take it.
CREATE TABLE refs (
  payload INTEGER NOT NULL,
  session INTEGER NOT NULL,
  used INTEGER NOT NULL,
  PRIMARY KEY (payload, session)
) WITHOUT ROWID;

CREATE TABLE erasures (
  session INTEGER NOT NULL,
  payload BLOB NOT NULL,
  at TEXT NOT NULL,
  rule TEXT NOT NULL,
  PRIMARY KEY (session, payload)
) WITHOUT ROWID;

CREATE TABLE inbox (
  key INTEGER PRIMARY KEY,
  session INTEGER NOT NULL,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  at TEXT NOT NULL,
  call_id TEXT,
  content TEXT,
  consumed_seq INTEGER,
  UNIQUE (session, name)
);
CREATE UNIQUE INDEX inbox_calls ON inbox (session, call_id) WHERE call_id IS NOT NULL;
CREATE INDEX inbox_pending ON inbox (session) WHERE consumed_seq IS NULL;

CREATE TABLE owners (
  id TEXT PRIMARY KEY,
  host TEXT NOT NULL,
  boot TEXT NOT NULL,
  namespace TEXT NOT NULL,
  pid INTEGER NOT NULL,
  started TEXT NOT NULL,
  ticks REAL NOT NULL,
  wall REAL NOT NULL,
  seconds REAL NOT NULL
) WITHOUT ROWID;
