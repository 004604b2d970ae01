-- Calls that wait for someone. Derived: the rows repeat what the log says and change with it, in one
-- transaction. `seq` is the event that began the wait, `due_at` its deadline in milliseconds.
CREATE TABLE pending_calls (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  session INTEGER NOT NULL,
  call_id TEXT NOT NULL,
  name TEXT NOT NULL,
  wait INTEGER NOT NULL,
  kind TEXT NOT NULL,
  seq INTEGER NOT NULL,
  since TEXT NOT NULL,
  deadline TEXT,
  due_at INTEGER,
  assignee TEXT,
  UNIQUE (session, call_id)
);
CREATE INDEX pending_calls_due ON pending_calls (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX pending_calls_assignee ON pending_calls (assignee) WHERE assignee IS NOT NULL;

-- Of answers and expiries the first counts for each wait of a call, no longer for the call.
ALTER TABLE inbox ADD COLUMN wait INTEGER;
ALTER TABLE inbox ADD COLUMN asked_by TEXT;
DROP INDEX inbox_calls;
CREATE UNIQUE INDEX inbox_decisions ON inbox (session, call_id, coalesce(wait, 0))
WHERE kind IN ('answer', 'expiry');

-- Names follow from ids, by a rule that SQL does not know: the release that migrates fills them in.
ALTER TABLE sessions ADD COLUMN name TEXT NOT NULL DEFAULT '';
CREATE INDEX sessions_name ON sessions (name);
CREATE INDEX sessions_status ON sessions (status);
