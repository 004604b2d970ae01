-- What every process that opens the store must agree on: `blobs` is the place of large payloads.

CREATE TABLE {schema}.settings (
  name text PRIMARY KEY,
  value text NOT NULL
);
