-- Model calls for an audit, beside the log: no digest covers them, and gc takes them by age and count.

CREATE TABLE audit (
  session INTEGER NOT NULL,
  number INTEGER NOT NULL,
  at TEXT NOT NULL,
  record BLOB NOT NULL,
  PRIMARY KEY (session, number)
) WITHOUT ROWID;
CREATE INDEX audit_at ON audit (at);
