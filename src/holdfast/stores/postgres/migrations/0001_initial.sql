-- Every key but that of payloads begins with a session, so the tables can be partitioned by it.
-- Rows name what they belong to without foreign keys: a post inserts into another session's inbox
-- without touching its row. `moved` is the transaction that wrote a row, for those who poll.

CREATE TABLE {schema}.migrations (
  version integer PRIMARY KEY,
  name text NOT NULL,
  checksum text NOT NULL,
  applied_at text NOT NULL
);

CREATE TABLE {schema}.tenants (
  key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE
);

-- The moving columns repeat what the log says at its tip; they change with it, in one transaction.
-- There is room in each page for new versions of its rows.
CREATE TABLE {schema}.sessions (
  key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_key bigint NOT NULL,
  seq bigint NOT NULL,
  epoch bigint NOT NULL DEFAULT 0,
  tokens bigint NOT NULL,
  moved bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
  turns integer NOT NULL,
  unknown_usd integer NOT NULL,
  imported integer NOT NULL DEFAULT 0,
  id text NOT NULL,
  tenant text NOT NULL,
  name text NOT NULL,
  kind text NOT NULL,
  agent text NOT NULL,
  parent text,
  origin text,
  labels text NOT NULL,
  started_at text NOT NULL,
  owner text,
  digest bytea NOT NULL,
  status text NOT NULL,
  updated_at text NOT NULL,
  last_turn text,
  head text,
  usd text NOT NULL,
  UNIQUE (tenant, id)
) WITH (fillfactor = 70);
CREATE INDEX sessions_name ON {schema}.sessions (name);
CREATE INDEX sessions_status ON {schema}.sessions (status);
CREATE INDEX sessions_tenant ON {schema}.sessions (tenant, key);
CREATE INDEX sessions_parent ON {schema}.sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_owner ON {schema}.sessions (owner) WHERE owner IS NOT NULL;
CREATE INDEX sessions_moved ON {schema}.sessions (moved);

CREATE TABLE {schema}.tombstones (
  tenant text NOT NULL,
  id text NOT NULL,
  deleted_at text NOT NULL,
  moved bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
  PRIMARY KEY (id, tenant)
);
CREATE INDEX tombstones_moved ON {schema}.tombstones (moved);

CREATE TABLE {schema}.events (
  session bigint NOT NULL,
  seq bigint NOT NULL,
  version integer NOT NULL,
  type text NOT NULL,
  at text NOT NULL,
  digest bytea NOT NULL,
  data text NOT NULL,
  PRIMARY KEY (session, seq)
);

-- Derived: dropping every row costs only time.
CREATE TABLE {schema}.snapshots (
  session bigint PRIMARY KEY,
  seq bigint NOT NULL,
  fold integer NOT NULL,
  digest bytea NOT NULL,
  checksum bytea NOT NULL,
  body bytea NOT NULL
);

-- A payload's row names the session that stored it first and whether that one uses it; `refs` holds
-- the others. `data` is null for payloads that are blobs; `at` is milliseconds since the epoch.
CREATE TABLE {schema}.payloads (
  tenant bigint NOT NULL,
  size bigint NOT NULL,
  at bigint NOT NULL,
  session bigint,
  used integer NOT NULL,
  id bytea NOT NULL,
  data bytea,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX payloads_unused ON {schema}.payloads (at) WHERE used = 0;

CREATE TABLE {schema}.refs (
  tenant bigint NOT NULL,
  session bigint NOT NULL,
  used integer NOT NULL,
  id bytea NOT NULL,
  PRIMARY KEY (tenant, id, session)
);
CREATE INDEX refs_session ON {schema}.refs (session);

-- Large payloads, where the store has no object store for them.
CREATE TABLE {schema}.blobs (
  tenant text NOT NULL,
  id text NOT NULL,
  at double precision NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (tenant, id)
);
ALTER TABLE {schema}.blobs ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE {schema}.erasures (
  session bigint NOT NULL,
  payload bytea NOT NULL,
  at text NOT NULL,
  rule text NOT NULL,
  PRIMARY KEY (session, payload)
);

CREATE TABLE {schema}.inbox (
  key bigint GENERATED ALWAYS AS IDENTITY,
  session bigint NOT NULL,
  wait bigint,
  consumed_seq bigint,
  moved bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
  name text NOT NULL,
  kind text NOT NULL,
  at text NOT NULL,
  call_id text,
  content text,
  asked_by text,
  PRIMARY KEY (session, name)
);
CREATE UNIQUE INDEX inbox_decisions ON {schema}.inbox (session, call_id, coalesce(wait, 0))
WHERE kind IN ('answer', 'expiry');
CREATE INDEX inbox_waiting ON {schema}.inbox (session) WHERE consumed_seq IS NULL;
CREATE INDEX inbox_moved ON {schema}.inbox (moved);

-- Calls that wait for someone. Derived: the rows repeat what the log says and change with it.
CREATE TABLE {schema}.pending_calls (
  key bigint GENERATED ALWAYS AS IDENTITY,
  session bigint NOT NULL,
  wait bigint NOT NULL,
  seq bigint NOT NULL,
  due_at bigint,
  call_id text NOT NULL,
  name text NOT NULL,
  kind text NOT NULL,
  since text NOT NULL,
  deadline text,
  assignee text,
  PRIMARY KEY (session, call_id)
);
CREATE UNIQUE INDEX pending_calls_key ON {schema}.pending_calls (key);
CREATE INDEX pending_calls_due ON {schema}.pending_calls (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX pending_calls_assignee ON {schema}.pending_calls (assignee) WHERE assignee IS NOT NULL;

CREATE TABLE {schema}.owners (
  id text PRIMARY KEY,
  host text NOT NULL,
  boot text NOT NULL,
  namespace text NOT NULL,
  pid bigint NOT NULL,
  started text NOT NULL,
  ticks double precision NOT NULL,
  wall double precision NOT NULL,
  seconds double precision NOT NULL
) WITH (fillfactor = 50);
