-- What is kept: slots, the claims that hold or wait there, and a little beside them.
--
-- @S stands for the schema. Times are microseconds of the server's wall clock. Whoever changes a claim
-- holds the lock of its slot's row; rows of slots are locked in the order of their names.

-- The versions of this schema that were brought in, the latest last.
CREATE TABLE @S.migrations (
  version int PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What all clients of a namespace agreed on.
CREATE TABLE @S.spaces (
  ns int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  max_lease bigint NOT NULL,
  durability text NOT NULL,
  -- The cluster and its timeline: another one may have lost what was committed last.
  history text NOT NULL
);

-- Where fences and arrivals come from: never below the clock, see mint.
CREATE SEQUENCE @S.numbers;

-- Empty after a crash and on a standby that was promoted: then nobody comes in for a while, where
-- commits are not waited for.
CREATE UNLOGGED TABLE @S.alive (
  ns int PRIMARY KEY,
  grace bigint NOT NULL
);

CREATE TABLE @S.slots (
  ns int NOT NULL,
  name text COLLATE "C" NOT NULL,
  -- -1 a lock (readers or one writer; a mutex is the writer), else so many permits.
  shape int NOT NULL DEFAULT -1,
  holders int NOT NULL DEFAULT 0,
  waiting int NOT NULL DEFAULT 0,
  -- How many tickets stand ahead of the line; have ancestors; come instead of a hold; concern other
  -- slots too (a set, or one that comes instead of a hold).
  ahead int NOT NULL DEFAULT 0,
  nested int NOT NULL DEFAULT 0,
  replacing int NOT NULL DEFAULT 0,
  entangled int NOT NULL DEFAULT 0,
  -- How many ever came to this line.
  joined bigint NOT NULL DEFAULT 0,
  -- What all holders weigh, each owner once where its claims do not add up.
  weight bigint NOT NULL DEFAULT 0,
  -- The only claim here, if it is known to be one.
  lone uuid,
  -- Nobody expires before.
  calm bigint NOT NULL DEFAULT 9223372036854775807,
  -- Nobody new comes in before.
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
  -- Grows with every hold of a slot.
  number bigint NOT NULL DEFAULT 0,
  joined bigint NOT NULL DEFAULT 0,
  since bigint NOT NULL,
  expires bigint NOT NULL,
  lease bigint NOT NULL,
  delay bigint NOT NULL,
  replaces uuid,
  -- All names of a set; none for a claim on one name.
  parts text[] COLLATE "C",
  host text NOT NULL,
  pid bigint NOT NULL,
  place text,
  label text,
  -- By the claim first, so that whoever looks for one claim never reads a whole line.
  PRIMARY KEY (id, ns, name)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Where a claim is looked up by its id, its state is compared by IS NOT DISTINCT FROM, which no index
-- serves: the way through these two would be the way through a whole line. Whoever looks at all claims
-- of a slot asks for those that hold and for those that wait, one after the other.
CREATE INDEX claims_held ON @S.claims (ns, name, owner) WHERE held;
CREATE INDEX claims_owner ON @S.claims (ns, name, owner) WHERE NOT held;
CREATE INDEX claims_line ON @S.claims (ns, name, ahead, arrival) WHERE NOT held;
CREATE INDEX claims_odd ON @S.claims (ns, name)
  WHERE NOT held AND (parts IS NOT NULL OR replaces IS NOT NULL OR cardinality(lineage) > 1);
CREATE INDEX claims_waits ON @S.claims (ns, owner) WHERE NOT held;

-- Claims that must not come back, and the reason of a forced release.
CREATE TABLE @S.tombs (
  ns int NOT NULL,
  id uuid NOT NULL,
  until bigint NOT NULL,
  reason text,
  PRIMARY KEY (ns, id)
);
CREATE INDEX tombs_until ON @S.tombs (ns, until);

-- Versioned bytes. A row without a value remembers the fence of a cell that is gone.
CREATE TABLE @S.cells (
  ns int NOT NULL,
  name text COLLATE "C" NOT NULL,
  value bytea,
  version bigint NOT NULL,
  fence bigint,
  expires bigint,
  PRIMARY KEY (ns, name)
);

-- One answer of a verb, or one thing to tell a session. See the verbs for which columns say what.
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

-- The only clock there is.
CREATE FUNCTION @S.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The next number: larger than all before it, and not below the clock. The sequence runs up to two
-- seconds ahead, so that it is seldom moved; under a lock, so that it is never moved back.
CREATE FUNCTION @S.mint() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_number bigint := nextval('@S.numbers');
  v_clock bigint := least(@S.clock(), 4503599627370496);
BEGIN
  IF v_number >= v_clock THEN RETURN v_number; END IF;
  -- Until the end of the transaction: a statement that is cancelled here must not keep it.
  PERFORM pg_advisory_xact_lock(7236847, 1);
  v_number := nextval('@S.numbers');
  IF v_number < v_clock THEN
    PERFORM setval('@S.numbers', v_clock + 2000000);
    v_number := nextval('@S.numbers');
  END IF;
  RETURN v_number;
END $$;

-- Goes beyond every number that may have been given out and forgotten. None is further ahead of the
-- clock than mint lets the sequence run, and a little; where the clock is behind the sequence, none is
-- as far ahead of what the sequence remembers.
CREATE FUNCTION @S.leap() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(7236847, 1);
  PERFORM setval('@S.numbers', greatest(nextval('@S.numbers') + 2000000,
    least(@S.clock(), 4503599627370496) + 4000000));
END $$;

-- How much fits.
CREATE FUNCTION @S.capacity(p_shape int) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_shape < 0 THEN 2147483647 ELSE p_shape END::bigint $$;
