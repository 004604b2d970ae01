-- Model calls for an audit, beside the log: no digest covers them, and gc takes them by age and count.

CREATE TABLE {schema}.audit (
  session bigint NOT NULL,
  number bigint NOT NULL,
  at text NOT NULL,
  record bytea NOT NULL,
  PRIMARY KEY (session, number)
);
CREATE INDEX audit_at ON {schema}.audit (at);
