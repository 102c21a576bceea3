-- Rates: exact limits for how much is taken in how much time. The rule is that of ledger/rates.rs.
--
-- Every change of a rate is made under an advisory lock of its name, kept until the commit, and what is
-- refused writes nothing: a row lock would. The clock is read after the lock. A call waits for no other lock;
-- the sweep only tries.
--
-- A rate has a row with arrays that have an element for each limit, shortest window first. The entries of a
-- limit that are older than its newest one are in a ring of rows: entry number n, from low on and before next,
-- has the place n % size. A place is written again when its entry is past. If the ring is full, its size is
-- doubled.
--
-- A rate of one limit has two more places for entries, in its row, so that most requests are one UPDATE of one
-- row and no index (HOT), the short path of `take`:
--   fresh  the youngest entries, behind those of the ring, until there are 24 of them
--   front  a copy of the oldest entries of the ring, so that it is known what is past and counts no more,
--          as long as that is before `calm`
-- Everything else knows the ring alone: first the fresh entries are written to it, all at once (`unfold`). If the
-- front is empty, so is the ring.

-- One rate. An even flow has no windows; at[1] is until when it is busy.
CREATE TABLE @S.rates (
  ns int NOT NULL,
  name text COLLATE "C" NOT NULL,
  windows bigint[] NOT NULL,
  -- The latest time at which something was taken.
  seen bigint NOT NULL,
  -- As in LogHead.
  used bigint[] NOT NULL,
  count bigint[] NOT NULL,
  born bigint[] NOT NULL,
  first bigint[] NOT NULL,
  at bigint[] NOT NULL,
  cost bigint[] NOT NULL,
  -- The ring.
  low bigint[] NOT NULL,
  next bigint[] NOT NULL,
  size bigint[] NOT NULL,
  -- The fresh entries, and the front: instants, and how many permits they and those before them have, from
  -- a 0 on.
  fresh_at bigint[] NOT NULL,
  fresh_cost bigint[] NOT NULL,
  front_at bigint[] NOT NULL,
  front_sum bigint[] NOT NULL,
  -- The last time of the front; without a front that of the oldest entry.
  calm bigint NOT NULL,
  -- When the row may be deleted. Raised in large steps, so that most updates stay out of the index (HOT).
  kept bigint NOT NULL,
  PRIMARY KEY (ns, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX rates_kept ON @S.rates (ns, kept);

CREATE TABLE @S.rate_entries (
  ns int NOT NULL,
  name text COLLATE "C" NOT NULL,
  nth int NOT NULL,
  place bigint NOT NULL,
  at bigint NOT NULL,
  cost bigint NOT NULL,
  PRIMARY KEY (ns, name, nth, place)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Locks a rate. Returns the time, read after that: the condition is evaluated first.
CREATE FUNCTION @S.lock_rate(p_ns int, p_name text) RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT CASE WHEN pg_advisory_xact_lock('@S.rates'::regclass::oid::int, @S.cell_key(p_ns, p_name))
  IS NOT NULL THEN @S.clock() END $$;

-- Returns from when on nothing of a rate counts. The newest entries of all limits have the same time.
CREATE FUNCTION @S.rate_ends(r @S.rates) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT r.at[1] + coalesce(r.windows[cardinality(r.windows)], 0) $$;

-- Removes what does not count at p_at from the log of one limit.
CREATE FUNCTION @S.drop_past(r @S.rates, p_nth int, p_at bigint) RETURNS @S.rates
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_at bigint;
  v_cost bigint;
BEGIN
  WHILE r.low[p_nth] < r.next[p_nth] LOOP
    SELECT e.at, e.cost INTO v_at, v_cost FROM @S.rate_entries e
      WHERE e.ns = r.ns AND e.name = r.name AND e.nth = p_nth AND e.place = r.low[p_nth] % r.size[p_nth];
    IF v_at + r.windows[p_nth] > p_at THEN RETURN r; END IF;
    --#path postgres take: entries that are past
    r.low[p_nth] := r.low[p_nth] + 1;
    r.count[p_nth] := r.count[p_nth] - 1;
    r.used[p_nth] := r.used[p_nth] - v_cost;
  END LOOP;
  IF r.count[p_nth] > 0 AND r.at[p_nth] + r.windows[p_nth] <= p_at THEN
    r.count[p_nth] := 0;
    r.used[p_nth] := 0;
  END IF;
  RETURN r;
END $$;

-- Returns the earliest time at which so many permits of one limit fit, not before p_from. What is past at
-- p_from was dropped from the log.
CREATE FUNCTION @S.earliest(r @S.rates, p_nth int, p_permits bigint, p_cost bigint, p_from bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_used bigint := r.used[p_nth];
  v_number bigint := r.low[p_nth];
  v_result bigint := p_from;
  v_at bigint;
  v_cost bigint;
BEGIN
  WHILE v_used + p_cost > p_permits AND v_number < r.next[p_nth] LOOP
    SELECT e.at, e.cost INTO v_at, v_cost FROM @S.rate_entries e
      WHERE e.ns = r.ns AND e.name = r.name AND e.nth = p_nth AND e.place = v_number % r.size[p_nth];
    v_used := v_used - v_cost;
    v_number := v_number + 1;
    v_result := v_at + r.windows[p_nth];
  END LOOP;
  IF v_used + p_cost > p_permits THEN v_result := r.at[p_nth] + r.windows[p_nth]; END IF;
  RETURN v_result;
END $$;

-- Doubles a ring: the entries that stand before the oldest one go behind the others.
CREATE FUNCTION @S.grow_ring(r @S.rates, p_nth int) RETURNS @S.rates LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_size bigint := r.size[p_nth];
  v_low bigint := r.low[p_nth] % v_size;
BEGIN
  --#path postgres take: a ring that grows
  --#path postgres take: a ring that has turned grows if v_low > 0
  UPDATE @S.rate_entries e SET place = e.place + v_size
    WHERE e.ns = r.ns AND e.name = r.name AND e.nth = p_nth AND e.place < v_low;
  r.next[p_nth] := v_low + r.next[p_nth] - r.low[p_nth];
  r.low[p_nth] := v_low;
  r.size[p_nth] := 2 * v_size;
  RETURN r;
END $$;

-- Copies the oldest entries of the ring to the front, of a rate with one limit: as many as stand side by side.
CREATE FUNCTION @S.fill_front(r @S.rates) RETURNS @S.rates LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_low bigint := r.low[1] % r.size[1];
BEGIN
  r.calm := r.at[1];
  r.front_at := '{}';
  r.front_sum := '{0}';
  IF cardinality(r.windows) = 1 AND r.low[1] < r.next[1] THEN
    SELECT array_agg(f.at), 0 || array_agg(f.sum) INTO r.front_at, r.front_sum
      FROM (SELECT e.at, (sum(e.cost) OVER (ORDER BY e.place))::bigint AS sum FROM @S.rate_entries e
        WHERE e.ns = r.ns AND e.name = r.name AND e.nth = 1 AND e.place >= v_low
          AND e.place < least(v_low + 24, v_low + r.next[1] - r.low[1], r.size[1])) f;
    r.calm := r.front_at[cardinality(r.front_at)];
  END IF;
  RETURN r;
END $$;

-- Writes the fresh entries of a rate with one limit to the ring, and fills the front with the oldest entries that
-- are later than p_old. Does nothing if there are no fresh ones and the front has such an entry.
CREATE FUNCTION @S.unfold(r @S.rates, p_old bigint) RETURNS @S.rates LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_gone int := width_bucket(p_old, r.front_at);
BEGIN
  IF cardinality(r.fresh_at) = 0 AND r.calm > p_old THEN RETURN r; END IF;
  r.low[1] := r.low[1] + v_gone;
  r.count[1] := r.count[1] - v_gone;
  r.used[1] := r.used[1] - r.front_sum[v_gone + 1];
  --#path postgres take: fresh entries go into the ring
  WHILE r.next[1] - r.low[1] + cardinality(r.fresh_at) > r.size[1] LOOP r := @S.grow_ring(r, 1); END LOOP;
  INSERT INTO @S.rate_entries (ns, name, nth, place, at, cost)
    SELECT r.ns, r.name, 1, (r.next[1] + u.n - 1) % r.size[1], u.at, u.cost
      FROM unnest(r.fresh_at, r.fresh_cost) WITH ORDINALITY u (at, cost, n)
    ON CONFLICT (ns, name, nth, place) DO UPDATE SET at = EXCLUDED.at, cost = EXCLUDED.cost;
  r.next[1] := r.next[1] + cardinality(r.fresh_at);
  r.fresh_at := '{}';
  r.fresh_cost := '{}';
  r := @S.fill_front(r);
  UPDATE @S.rates x SET used = r.used, count = r.count, low = r.low, next = r.next, size = r.size,
      fresh_at = r.fresh_at, fresh_cost = r.fresh_cost, front_at = r.front_at, front_sum = r.front_sum,
      calm = r.calm
    WHERE x.ns = r.ns AND x.name = r.name;
  RETURN r;
END $$;

-- Adds an entry at p_at to the log of one limit.
CREATE FUNCTION @S.add_entry(r @S.rates, p_nth int, p_at bigint, p_cost bigint) RETURNS @S.rates
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  r := @S.drop_past(r, p_nth, p_at);
  IF r.count[p_nth] > 0 AND (p_at = r.at[p_nth]
      OR (r.count[p_nth] >= 1024 AND p_at - r.first[p_nth] <= r.windows[p_nth] / 1024)) THEN
    --#path postgres take: at the instant of the newest entry if p_at = r.at[p_nth]
    --#path postgres take: merged into the newest entry if p_at <> r.at[p_nth]
    r.cost[p_nth] := r.cost[p_nth] + p_cost;
  ELSE
    IF r.count[p_nth] > 0 THEN
      IF r.next[p_nth] - r.low[p_nth] >= r.size[p_nth] THEN r := @S.grow_ring(r, p_nth); END IF;
      --#path postgres take: into the ring
      INSERT INTO @S.rate_entries (ns, name, nth, place, at, cost)
        VALUES (r.ns, r.name, p_nth, r.next[p_nth] % r.size[p_nth], r.at[p_nth], r.cost[p_nth])
        ON CONFLICT (ns, name, nth, place) DO UPDATE SET at = EXCLUDED.at, cost = EXCLUDED.cost;
      r.next[p_nth] := r.next[p_nth] + 1;
    ELSE
      --#path postgres take: the first entry
      r.born[p_nth] := p_at;
    END IF;
    r.first[p_nth] := p_at;
    r.cost[p_nth] := p_cost;
    r.count[p_nth] := r.count[p_nth] + 1;
  END IF;
  r.at[p_nth] := p_at;
  r.used[p_nth] := r.used[p_nth] + p_cost;
  RETURN r;
END $$;

-- Writes the row of a rate. A new one sweeps a few that are past.
CREATE FUNCTION @S.keep_rate(r @S.rates, p_now bigint, p_new bool) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ends bigint := @S.rate_ends(r);
  v_name text;
BEGIN
  r := @S.fill_front(r);
  IF r.kept < v_ends THEN r.kept := v_ends + greatest(60000000, v_ends - p_now); END IF;
  IF NOT p_new THEN
    UPDATE @S.rates x SET windows = r.windows, seen = r.seen, used = r.used, count = r.count,
        born = r.born, first = r.first, at = r.at, cost = r.cost, low = r.low, next = r.next,
        size = r.size, fresh_at = r.fresh_at, fresh_cost = r.fresh_cost, front_at = r.front_at,
        front_sum = r.front_sum, calm = r.calm, kept = r.kept
      WHERE x.ns = r.ns AND x.name = r.name;
    RETURN;
  END IF;
  INSERT INTO @S.rates SELECT (r).*;
  FOR v_name IN SELECT x.name FROM @S.rates x WHERE x.ns = r.ns AND x.kept < p_now
      ORDER BY x.kept LIMIT 2 LOOP
    IF pg_try_advisory_xact_lock('@S.rates'::regclass::oid::int, @S.cell_key(r.ns, v_name)) THEN
      DELETE FROM @S.rates x WHERE x.ns = r.ns AND x.name = v_name AND x.kept < p_now;
      IF FOUND THEN DELETE FROM @S.rate_entries e WHERE e.ns = r.ns AND e.name = v_name; END IF;
    END IF;
  END LOOP;
END $$;

-- Takes permits by the rule, for `take`, whose parameters it has, and the time.
CREATE FUNCTION @S.take_by_the_rule(p_ns int, p_name text, p_windows bigint[], p_permits bigint[], p_cost bigint,
  p_wait bigint, p_now bigint) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := p_now;
  v_limits int := cardinality(p_windows);
  v_from bigint;
  v_at bigint;
  v_stamp bigint;
  v_wait bigint;
  v_last int := 0;
  v_clear bigint[];
  v_new bool;
  r @S.rates;
BEGIN
  SELECT x.* INTO r FROM @S.rates x WHERE x.ns = p_ns AND x.name = p_name;
  v_new := NOT FOUND;
  IF v_new OR @S.rate_ends(r) <= v_now THEN
    --#path postgres take: of a rate that is past if NOT v_new
    IF r.windows <> p_windows THEN
      -- Rings of other windows. Where nothing is to be taken, they do no harm.
      IF p_wait >= 0 THEN
        DELETE FROM @S.rate_entries e WHERE e.ns = p_ns AND e.name = p_name;
      END IF;
      r.size := NULL;
    END IF;
    r := (p_ns, p_name, p_windows, 0, array_fill(0::bigint, ARRAY[greatest(v_limits, 1)]), NULL, NULL, NULL,
      NULL, NULL, NULL, NULL, coalesce(r.size, array_fill(8::bigint, ARRAY[greatest(v_limits, 1)])),
      '{}', '{}', '{}', '{0}', 0, coalesce(r.kept, 0))::@S.rates;
    r.count := r.used;
    r.born := r.used;
    r.first := r.used;
    r.at := r.used;
    r.cost := r.used;
    r.low := r.used;
    r.next := r.used;
  ELSIF r.windows <> p_windows THEN
    --#path postgres take: other windows
    RETURN -1::bigint || r.windows;
  ELSIF v_limits = 1 THEN
    r := @S.unfold(r, v_now - p_windows[1]);
  END IF;
  v_now := greatest(v_now, r.seen);
  IF v_limits = 0 THEN
    --#path postgres take: an even flow
    v_stamp := greatest(v_now, r.at[1] + p_permits[1] - p_permits[2]);
    v_wait := v_stamp - v_now;
    IF v_wait <= p_wait THEN
      r.at[1] := greatest(v_stamp, r.at[1]) + p_permits[1];
      r.seen := v_now;
      PERFORM @S.keep_rate(r, v_now, v_new);
    END IF;
    RETURN ARRAY[(v_wait <= p_wait)::int, v_wait, 0, r.at[1], 0, greatest(0, r.at[1] - v_now)];
  END IF;
  v_from := v_now;
  FOR i IN 1..v_limits LOOP v_from := greatest(v_from, r.at[i]); END LOOP;
  v_stamp := v_from;
  FOR i IN 1..v_limits LOOP
    -- In the row that was read; what is refused is not written.
    r := @S.drop_past(r, i, v_from);
    v_at := @S.earliest(r, i, p_permits[i], p_cost, v_from);
    IF v_at > v_stamp THEN
      v_stamp := v_at;
      v_last := i - 1;
    END IF;
  END LOOP;
  v_wait := v_stamp - v_now;
  IF v_wait <= p_wait THEN
    FOR i IN 1..v_limits LOOP r := @S.add_entry(r, i, v_stamp, p_cost); END LOOP;
    r.seen := v_now;
    PERFORM @S.keep_rate(r, v_now, v_new);
  END IF;
  FOR i IN 1..v_limits LOOP
    v_clear[i] := CASE WHEN r.at[i] = 0 THEN 0 ELSE greatest(0, r.at[i] + r.windows[i] - v_now) END;
  END LOOP;
  RETURN ARRAY[(v_wait <= p_wait)::int, v_wait, v_last, v_stamp] || r.used || v_clear;
END $$;

-- Takes permits where the short path of `take`, whose parameters it has, and the time, found that it cannot: says
-- that there is room when the oldest entry leaves the window, brings the row in order for another try, or goes
-- by the rule.
CREATE FUNCTION @S.take_otherwise(p_ns int, p_name text, p_windows bigint[], p_permits bigint[], p_cost bigint,
  p_wait bigint, p_now bigint) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_old bigint := p_now - p_windows[1];
  v_gone int;
  v_used bigint;
  v_oldest bigint;
  r @S.rates;
BEGIN
  SELECT x.* INTO r FROM @S.rates x WHERE x.ns = p_ns AND x.name = p_name AND x.windows = p_windows
    AND cardinality(p_windows) = 1 AND x.at[1] < p_now AND x.at[1] > v_old;
  IF FOUND AND r.calm > v_old THEN
    v_gone := width_bucket(v_old, r.front_at);
    v_used := r.used[1] - r.front_sum[v_gone + 1];
    v_oldest := r.front_at[v_gone + 1];
    -- Without a front all of this is NULL.
    IF v_used + p_cost > p_permits[1] AND v_oldest - v_old > p_wait
        AND v_used + p_cost - (r.front_sum[v_gone + 2] - r.front_sum[v_gone + 1]) <= p_permits[1] THEN
      --#path postgres take: short, refused
      RETURN ARRAY[0, v_oldest - v_old, 0, v_oldest + p_windows[1], v_used, r.at[1] - v_old];
    END IF;
  END IF;
  IF p_wait >= 0 AND r.ns IS NOT NULL AND (r.calm <= v_old OR cardinality(r.fresh_at) > 0) THEN
    PERFORM @S.unfold(r, v_old);
    RETURN @S.take(p_ns, p_name, p_windows, p_permits, p_cost, p_wait);
  END IF;
  RETURN @S.take_by_the_rule(p_ns, p_name, p_windows, p_permits, p_cost, p_wait, p_now);
END $$;

-- Takes permits at the earliest time at which all limits allow it, if that is at most p_wait ahead; p_wait is
-- -1 if nothing is to be taken. p_permits and p_windows are those of the limits, shortest window first; of an
-- even flow p_windows is empty, and p_permits has for how long the permits and the burst keep it busy.
--
-- Returns {stamp, what is used} if they were taken now, of one limit. Else {1 if taken, how long until then,
-- the last limit to allow it (from 0), stamp}, then what is used of each limit, then in how long nothing is; or
-- -1 and the windows that are in use if they are others.
CREATE FUNCTION @S.take(p_ns int, p_name text, p_windows bigint[], p_permits bigint[], p_cost bigint,
  p_wait bigint) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := @S.lock_rate(p_ns, p_name);
  -- Entries up to this time are past.
  v_old bigint := v_now - p_windows[1];
  v_ends bigint := v_now + p_windows[1];
  -- The newest entry takes in this request if its first one is not before this time, and there are many.
  v_since bigint := v_now - p_windows[1] / 1024;
  v_room bigint := p_permits[1] - p_cost;
  v_used bigint;
  v_cost bigint;
BEGIN
  IF cardinality(p_windows) = 1 AND p_wait >= 0 THEN
    -- Short path: there is room now. width_bucket counts the entries of the front that are past. Each column asks
    -- by itself whether the request is added to the newest entry. If only past entries make it so, the rule
    -- decides. No variable has the type of the row: to make one costs the server as much as the lock.
    UPDATE @S.rates x SET seen = v_now, used = ARRAY[x.used[1] + p_cost], at = ARRAY[v_now],
        count = CASE WHEN x.count[1] >= 1024 AND x.first[1] >= v_since THEN x.count
          ELSE ARRAY[x.count[1] + 1] END,
        first = CASE WHEN x.count[1] >= 1024 AND x.first[1] >= v_since THEN x.first
          ELSE ARRAY[v_now] END,
        cost = CASE WHEN x.count[1] >= 1024 AND x.first[1] >= v_since
          THEN ARRAY[x.cost[1] + p_cost] ELSE ARRAY[p_cost] END,
        fresh_at = CASE WHEN x.count[1] >= 1024 AND x.first[1] >= v_since THEN x.fresh_at
          ELSE x.fresh_at || x.at END,
        fresh_cost = CASE WHEN x.count[1] >= 1024 AND x.first[1] >= v_since THEN x.fresh_cost
          ELSE x.fresh_cost || x.cost END
      WHERE x.ns = p_ns AND x.name = p_name AND x.windows = p_windows AND x.at[1] < v_now
        AND x.calm > v_old AND x.kept >= v_ends AND cardinality(x.fresh_at) < 24
        AND x.used[1] - x.front_sum[width_bucket(v_old, x.front_at) + 1] <= v_room
        AND (x.count[1] < 1024 OR x.first[1] < v_since OR x.count[1] - width_bucket(v_old, x.front_at) >= 1024)
      RETURNING x.used[1] - x.front_sum[width_bucket(v_old, x.front_at) + 1], x.cost[1] INTO v_used, v_cost;
    IF FOUND THEN
      --#path postgres take: short, a new entry if v_cost = p_cost
      --#path postgres take: short, merged into the newest entry if v_cost > p_cost
      RETURN ARRAY[v_now, v_used];
    END IF;
  END IF;
  RETURN @S.take_otherwise(p_ns, p_name, p_windows, p_permits, p_cost, p_wait, v_now);
END $$;

-- Corrects how many permits were taken. p_lasts is, of an even flow, for how long what was taken and what it
-- should have been keep it busy. Returns whether it counts.
CREATE FUNCTION @S.settle(p_ns int, p_name text, p_windows bigint[], p_stamp bigint, p_taken bigint,
  p_actual bigint, p_lasts bigint[]) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := @S.lock_rate(p_ns, p_name);
  v_place bigint;
  v_old bigint;
  v_cost bigint;
  v_settled bool := false;
  r @S.rates;
BEGIN
  SELECT x.* INTO r FROM @S.rates x WHERE x.ns = p_ns AND x.name = p_name;
  IF NOT FOUND OR r.windows <> p_windows THEN RETURN false; END IF;
  IF cardinality(p_windows) = 1 THEN r := @S.unfold(r, v_now - p_windows[1]); END IF;
  v_now := greatest(v_now, r.seen);
  IF cardinality(p_windows) = 0 THEN
    IF p_stamp <= v_now OR p_stamp > r.at[1] THEN RETURN false; END IF;
    --#path postgres settle: an even flow
    r.at[1] := r.at[1] - least(greatest(0, p_lasts[1] - p_lasts[2]), p_stamp - v_now)
      + greatest(0, p_lasts[2] - p_lasts[1]);
    PERFORM @S.keep_rate(r, v_now, false);
    RETURN true;
  END IF;
  FOR i IN 1..cardinality(p_windows) LOOP
    CONTINUE WHEN r.count[i] = 0 OR p_stamp < r.born[i] OR p_stamp > r.at[i]
      OR p_stamp + r.windows[i] <= v_now;
    v_settled := true;
    v_place := NULL;
    v_old := r.cost[i];
    -- The oldest entry that is not before the stamp, among those that count.
    SELECT e.place, e.cost INTO v_place, v_old FROM @S.rate_entries e
      WHERE e.ns = p_ns AND e.name = p_name AND e.nth = i AND e.at >= p_stamp
        AND (e.place - r.low[i] % r.size[i] + r.size[i]) % r.size[i] < r.next[i] - r.low[i]
      ORDER BY e.at LIMIT 1;
    IF v_place IS NULL THEN v_old := r.cost[i]; END IF;
    v_cost := greatest(0, v_old - greatest(0, p_taken - p_actual)) + greatest(0, p_actual - p_taken);
    r.used[i] := r.used[i] - v_old + v_cost;
    IF v_place IS NULL THEN
      --#path postgres settle: the newest entry
      r.cost[i] := v_cost;
    ELSE
      --#path postgres settle: an entry of the ring
      UPDATE @S.rate_entries e SET cost = v_cost
        WHERE e.ns = p_ns AND e.name = p_name AND e.nth = i AND e.place = v_place;
    END IF;
  END LOOP;
  IF v_settled THEN PERFORM @S.keep_rate(r, v_now, false); END IF;
  RETURN v_settled;
END $$;

-- Forgets everything that was taken.
CREATE FUNCTION @S.reset(p_ns int, p_name text) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := @S.lock_rate(p_ns, p_name);
BEGIN
  DELETE FROM @S.rate_entries e WHERE e.ns = p_ns AND e.name = p_name;
  DELETE FROM @S.rates x WHERE x.ns = p_ns AND x.name = p_name;
  RETURN v_now > 0;
END $$;
