-- Tables: slots, claims (holders and waiters), tombstones, cells, their watches, and the terms of namespaces.
--
-- @S stands for the schema. Times are microseconds of the server's wall clock. Locking: a transaction that
-- changes a claim has locked the row of its slot; rows of slots are locked in the order of their names, so
-- that no two transactions deadlock.

-- The migrations that were applied.
CREATE TABLE @S.migrations (
  version int PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The terms of each namespace, which all its clients state alike.
CREATE TABLE @S.spaces (
  ns int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  max_lease bigint NOT NULL,
  durability text NOT NULL,
  -- The cluster and its timeline: a different one may have lost the last commits.
  history text NOT NULL
);

-- The source of fences and arrivals: never below the clock, see mint.
CREATE SEQUENCE @S.numbers;

-- Empty after a crash and on a promoted standby, because it is UNLOGGED. Then, where commits do not wait for
-- the disk, no new grants are made before `grace`.
CREATE UNLOGGED TABLE @S.alive (
  ns int PRIMARY KEY,
  grace bigint NOT NULL
);

CREATE TABLE @S.slots (
  ns int NOT NULL,
  name text COLLATE "C" NOT NULL,
  -- -1 for a lock (readers or one writer; a mutex is the writer), otherwise the number of permits.
  shape int NOT NULL DEFAULT -1,
  holders int NOT NULL DEFAULT 0,
  waiting int NOT NULL DEFAULT 0,
  -- The number of tickets that are ahead of the queue; that have ancestors; that replace a hold; that
  -- concern other slots too (parts of a set, and those that replace a hold).
  ahead int NOT NULL DEFAULT 0,
  nested int NOT NULL DEFAULT 0,
  replacing int NOT NULL DEFAULT 0,
  entangled int NOT NULL DEFAULT 0,
  -- The number of tickets so far, since the slot was last empty.
  joined bigint NOT NULL DEFAULT 0,
  -- The weight of all holders; each owner counts once where its claims do not add up.
  weight bigint NOT NULL DEFAULT 0,
  -- The id of the only claim of this slot, a holder; NULL if there are others, or that is not known.
  lone uuid,
  -- No claim expires before this.
  calm bigint NOT NULL DEFAULT 9223372036854775807,
  -- No new grant before this: the lock delay after an expired lease, or a grace.
  closed bigint NOT NULL DEFAULT 0,
  -- Claims that share a fence: {key: {"f": fence, "s": spent, "m": members}}.
  groups jsonb,
  PRIMARY KEY (ns, name)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE @S.claims (
  ns int NOT NULL,
  name text COLLATE "C" NOT NULL,
  id uuid NOT NULL,
  held bool NOT NULL,
  ahead bool NOT NULL DEFAULT false,
  reserved bool NOT NULL DEFAULT false,
  weight int NOT NULL,
  owner uuid NOT NULL,
  -- The owner, then its ancestors.
  lineage uuid[] NOT NULL,
  session uuid,
  fence bigint NOT NULL DEFAULT 0,
  grp bigint,
  arrival bigint NOT NULL,
  -- Grows with every grant of a slot: the order of holders.
  number bigint NOT NULL DEFAULT 0,
  joined bigint NOT NULL DEFAULT 0,
  since bigint NOT NULL,
  expires bigint NOT NULL,
  lease bigint NOT NULL,
  delay bigint NOT NULL,
  replaces uuid,
  -- All names of a set; NULL for a claim on one name.
  parts text[] COLLATE "C",
  host text NOT NULL,
  pid bigint NOT NULL,
  place text,
  label text,
  -- How the deadlock detector treats the claim, as a number (`Conduct::to_code`).
  conduct int NOT NULL DEFAULT 0,
  -- The id comes first, so that a lookup of one claim never reads a whole queue.
  PRIMARY KEY (id, ns, name)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- A lookup by id compares `held` by IS NOT DISTINCT FROM, which matches no partial index: a plan by one of
-- these would read a whole queue. A query for all claims of a slot reads the holders and the waiters
-- separately, so that each has its index.
CREATE INDEX claims_held ON @S.claims (ns, name, owner) WHERE held;
CREATE INDEX claims_owner ON @S.claims (ns, name, owner) WHERE NOT held;
CREATE INDEX claims_line ON @S.claims (ns, name, ahead, arrival) WHERE NOT held;
CREATE INDEX claims_odd ON @S.claims (ns, name)
  WHERE NOT held AND (parts IS NOT NULL OR replaces IS NOT NULL OR cardinality(lineage) > 1);
CREATE INDEX claims_waits ON @S.claims (ns, owner) WHERE NOT held;

-- Tombstones: claims whose late copies are refused, and the reason if they were evicted.
CREATE TABLE @S.tombs (
  ns int NOT NULL,
  id uuid NOT NULL,
  until bigint NOT NULL,
  reason text,
  PRIMARY KEY (ns, id)
);
CREATE INDEX tombs_until ON @S.tombs (ns, until);

-- Cells. A row without a value keeps the fence of a removed cell, or the log of its writes.
CREATE TABLE @S.cells (
  ns int NOT NULL,
  name text COLLATE "C" NOT NULL,
  value bytea,
  version bigint NOT NULL,
  fence bigint,
  expires bigint,
  -- The number of writes with an id so far, the time of the last, and the time of the youngest that the log
  -- has no room for any more.
  logged bigint NOT NULL DEFAULT 0,
  logged_at bigint,
  dropped bigint,
  -- When the row is needed no more; NULL if it has a fence or a value without an end. Such a row keeps this
  -- column through all its writes, so that they stay out of the index below (HOT).
  ends bigint,
  PRIMARY KEY (ns, name)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX cells_ends ON @S.cells (ns, ends) WHERE ends IS NOT NULL;

-- The ids of the last 128 writes with an id to each cell, as a ring: in a row of the cell they would be
-- rewritten, 4 KiB and more, with each of them.
CREATE TABLE @S.cell_log (
  ns int NOT NULL,
  name text COLLATE "C" NOT NULL,
  place int NOT NULL,
  id uuid NOT NULL,
  version bigint NOT NULL,
  at bigint NOT NULL,
  PRIMARY KEY (ns, name, place)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Which cells are watched, or which beginnings of names, and by which client. Empty after a crash, which
-- ends all connections: clients that watch register again.
CREATE UNLOGGED TABLE @S.watches (
  ns int NOT NULL,
  prefix bool NOT NULL,
  name text COLLATE "C" NOT NULL,
  watcher uuid NOT NULL,
  PRIMARY KEY (ns, prefix, name, watcher)
);

-- One reply row of a verb, or one signal for a session. The head of each verb's file says which columns have
-- a value for which kind.
CREATE TYPE @S.answer AS (
  item int,
  kind text,
  arrival bigint,
  place bigint,
  first bigint,
  fences bigint[],
  name text,
  shape int,
  texts text[]
);

-- The clock of all decisions.
CREATE FUNCTION @S.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Returns the next number: larger than all before it, and not below the clock. If the sequence has fallen
-- behind, it is set two seconds ahead of the clock, so that this is rarely needed; under a lock, so that a
-- concurrent call never sets it back.
CREATE FUNCTION @S.mint() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_number bigint := nextval('@S.numbers');
  v_clock bigint := least(@S.clock(), 4503599627370496);
BEGIN
  IF v_number >= v_clock THEN RETURN v_number; END IF;
  -- Held until the transaction ends: a session lock would survive a cancelled statement.
  PERFORM pg_advisory_xact_lock(7236847, 1);
  v_number := nextval('@S.numbers');
  IF v_number < v_clock THEN
    PERFORM setval('@S.numbers', v_clock + 2000000);
    v_number := nextval('@S.numbers');
  END IF;
  RETURN v_number;
END $$;

-- Raises the sequence above every number that was drawn and then lost. No such number is more than two
-- seconds (mint) and a little ahead of the clock; where the clock is behind the sequence, none is two
-- million above what the sequence has kept.
CREATE FUNCTION @S.leap() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(7236847, 1);
  PERFORM setval('@S.numbers', greatest(nextval('@S.numbers') + 2000000,
    least(@S.clock(), 4503599627370496) + 4000000));
END $$;

-- Returns the capacity of a slot.
CREATE FUNCTION @S.capacity(p_shape int) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_shape < 0 THEN 2147483647 ELSE p_shape END::bigint $$;
