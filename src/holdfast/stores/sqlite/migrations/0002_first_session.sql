-- A payload's row names the session that stored it first and whether that one uses it; `refs` holds
-- the others. Most payloads have no other, so most appends write one row and one page less.
-- A first session that is deleted keeps its number here, which no other session ever gets.

CREATE TABLE new_payloads (
  key INTEGER PRIMARY KEY,
  tenant INTEGER NOT NULL,
  id BLOB NOT NULL,
  size INTEGER NOT NULL,
  at INTEGER NOT NULL,
  session INTEGER,
  used INTEGER NOT NULL,
  data BLOB,
  UNIQUE (tenant, id)
);
INSERT INTO new_payloads (key, tenant, id, size, at, session, used, data)
SELECT p.key, p.tenant, p.id, p.size, p.at, r.session, coalesce(r.used, 0), p.data
FROM payloads p LEFT JOIN refs r ON r.payload = p.key AND r.session = (
  SELECT min(session) FROM refs WHERE payload = p.key
)
ORDER BY p.key;
DROP TABLE payloads;
ALTER TABLE new_payloads RENAME TO payloads;
DELETE FROM refs WHERE session = (SELECT session FROM payloads WHERE key = refs.payload);
