-- inspect: reads slots. Changes only what the passing of time has ended already. Rows, by kind:
--
-- S  a slot: name, shape, first = remaining time of a lock delay or grace
-- H  a holder of the slot before it: texts (see view_of)
-- W  a waiter, the same, in the order of the queue, and its arrival
-- B  texts = an owner that waits for a lock of the database, one that holds it, the process that holds it
-- m  truncated: more slots can be reached
-- t  not a reply but a signal to deliver: name = session, texts = its text

-- Removes expired claims and serves the queue, in those of these slots where something has expired.
CREATE FUNCTION @S.touch_expired(p_ns int, p_async bool, p_names text[]) RETURNS SETOF @S.answer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := @S.clock();
  v_all text[] := ARRAY(SELECT s.name FROM @S.slots s WHERE s.ns = p_ns AND s.name = ANY (p_names)
    AND (s.calm <= v_now OR s.closed BETWEEN 1 AND v_now) ORDER BY 1);
  v_due text[] := v_all;
  v_name text;
BEGIN
  IF v_due = '{}' THEN RETURN; END IF;
  v_all := @S.lock_slots(p_ns, v_due, false);
  v_now := @S.begin_step(p_ns, v_all, p_async);
  FOREACH v_name IN ARRAY v_due LOOP PERFORM @S.touch(p_ns, v_name, v_now); END LOOP;
  RETURN QUERY SELECT * FROM @S.end_step(p_ns, v_all, v_now, p_async);
END $$;

-- Reads these slots in one snapshot: that of the calling query, because the function is STABLE.
CREATE FUNCTION @S.view(p_ns int, p_names text[], p_now bigint) RETURNS SETOF @S.answer
LANGUAGE sql STABLE AS $$
  SELECT NULL::int, v.kind, v.nth, NULL::bigint, v.closed, NULL::bigint[], v.name, v.shape,
    v.texts
  FROM (
    SELECT s.name, 'S' AS kind, s.shape, greatest(s.closed - p_now, 0) AS closed,
      NULL::text[] AS texts, 0 AS rank, false AS ahead, 0::bigint AS nth
    FROM @S.slots s WHERE s.ns = p_ns AND s.name = ANY (p_names)
      AND (s.holders > 0 OR s.waiting > 0 OR s.closed > p_now)
    UNION ALL
    SELECT c.name, 'H', NULL, NULL, @S.view_of(c, p_now), 1, NOT c.ahead, c.number
    FROM @S.claims c WHERE c.ns = p_ns AND c.name = ANY (p_names) AND c.held AND c.expires > p_now
    UNION ALL
    SELECT c.name, 'W', NULL, NULL, @S.view_of(c, p_now), 2, NOT c.ahead, c.arrival
    FROM @S.claims c WHERE c.ns = p_ns AND c.name = ANY (p_names) AND NOT c.held
      AND c.expires > p_now) v
  ORDER BY v.name, v.rank, v.ahead, v.nth
$$;

-- Inspects slots by name.
CREATE FUNCTION @S.inspect(p_ns int, p_async bool, p_names text[]) RETURNS SETOF @S.answer
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN QUERY SELECT * FROM @S.touch_expired(p_ns, p_async, p_names);
  RETURN QUERY SELECT * FROM @S.view(p_ns, p_names, @S.clock());
END $$;

-- Returns which owners wait for each other by locks of the database that are none of ours, as far as they
-- named their connections: each holds a lock on the name of the process of the server and when it was
-- started, because the number of a process is used again.
CREATE FUNCTION @S.outside_waits(p_ns int, p_now bigint)
RETURNS TABLE (waiter uuid, holder uuid, name text, pid int) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM @S.claims c WHERE c.ns = p_ns AND c.name >= chr(1) || 'backend:'
      AND c.name < chr(1) || 'backend;') THEN RETURN; END IF;
  RETURN QUERY
  WITH named AS MATERIALIZED (
    SELECT c.owner, c.name, s.pid, s.wait_event_type
    FROM pg_stat_activity s JOIN @S.claims c ON c.ns = p_ns AND c.held AND c.expires > p_now
      AND c.name = chr(1) || 'backend:' || s.pid || '-'
        || (extract(epoch FROM s.backend_start) * 1000000)::bigint)
  SELECT w.owner, h.owner, h.name, h.pid FROM named w
  CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) b (pid)
  JOIN named h ON h.pid = b.pid
  WHERE w.wait_event_type = 'Lock' AND h.owner <> w.owner;
END $$;

-- Inspects the slots that can be reached from an owner: those it waits for, those that the holders and
-- waiters of these wait for, and so on; and the markers of all owners there. For deadlock detection.
CREATE FUNCTION @S.reach(p_ns int, p_async bool, p_owner uuid, p_most int) RETURNS SETOF @S.answer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := 0;
  v_waiters uuid[];
  v_holders uuid[];
  v_names text[];
  v_pids int[];
  a @S.answer;
BEGIN
  SELECT coalesce(array_agg(w.waiter), '{}'), coalesce(array_agg(w.holder), '{}'),
    coalesce(array_agg(w.name), '{}'), coalesce(array_agg(w.pid), '{}')
    INTO v_waiters, v_holders, v_names, v_pids FROM @S.outside_waits(p_ns, @S.clock()) w;
  -- With 0 as the time, expired waits are followed too: their slots need touch_expired most.
  RETURN QUERY SELECT * FROM @S.touch_expired(p_ns, p_async, (SELECT array_agg(r)
    FROM @S.reached(p_ns, p_owner, 0, v_waiters, v_holders, v_names) r));
  v_now := @S.clock();
  RETURN QUERY SELECT v.* FROM
    (SELECT array_agg(r.n) AS names FROM (
      SELECT n FROM @S.reached(p_ns, p_owner, v_now, v_waiters, v_holders, v_names) n
      LIMIT p_most) r) found,
    LATERAL (SELECT array_agg(DISTINCT @S.marker(o.owner)) AS names FROM (
      SELECT c.owner FROM @S.claims c WHERE c.ns = p_ns AND c.name = ANY (found.names) AND c.held
      UNION ALL
      SELECT c.owner FROM @S.claims c WHERE c.ns = p_ns AND c.name = ANY (found.names)
        AND NOT c.held) o) marked,
    LATERAL @S.view(p_ns, found.names || marked.names, v_now) v;
  IF (SELECT count(*) FROM @S.reached(p_ns, p_owner, v_now, v_waiters, v_holders, v_names))
      > p_most THEN
    a.kind := 'm';
    RETURN NEXT a;
  END IF;
  a.kind := 'B';
  FOR i IN 1 .. cardinality(v_waiters) LOOP
    a.texts := ARRAY[v_waiters[i]::text, v_holders[i]::text, v_pids[i]::text];
    RETURN NEXT a;
  END LOOP;
END $$;

-- Returns the names of the slots that can be reached from an owner, without claims that expired by p_now.
-- The arrays are what outside_waits returned.
CREATE FUNCTION @S.reached(p_ns int, p_owner uuid, p_now bigint, p_waiters uuid[], p_holders uuid[],
  p_names text[]) RETURNS SETOF text LANGUAGE sql STABLE AS $$
  WITH RECURSIVE found (owner, name) AS (
    SELECT p_owner, NULL::text COLLATE "C"
    UNION
    SELECT x.owner, x.name FROM found f CROSS JOIN LATERAL (
      SELECT y.owner, y.name
      -- An ancestor may do nothing until its descendant has ended, so its waits are followed too.
      FROM (
        SELECT c.name FROM @S.claims c WHERE c.ns = p_ns AND NOT c.held AND c.owner = f.owner
          AND c.expires > p_now
        UNION ALL
        SELECT c.name FROM @S.claims c WHERE c.ns = p_ns AND NOT c.held
          AND cardinality(c.lineage) > 1 AND f.owner = ANY (c.lineage) AND c.expires > p_now) w
      CROSS JOIN LATERAL (
        SELECT c.owner, c.name FROM @S.claims c WHERE c.ns = p_ns AND c.name = w.name AND c.held
          AND c.expires > p_now
        UNION ALL
        SELECT c.owner, c.name FROM @S.claims c WHERE c.ns = p_ns AND c.name = w.name
          AND NOT c.held AND c.expires > p_now) y
      UNION ALL
      SELECT o.holder, o.name FROM unnest(p_waiters, p_holders, p_names) o (waiter, holder, name)
      WHERE o.waiter = f.owner) x)
  SELECT DISTINCT f.name FROM found f WHERE f.name IS NOT NULL ORDER BY 1
$$;

-- Returns a page of the names in use after a name, from p_from and below p_before (if given), in order; with
-- p_contended only those that have tickets. These are found by the index of the queues, one step of it for
-- each name, whatever the length of its queue: nothing has to be written for it when a queue begins or ends.
CREATE FUNCTION @S.names(p_ns int, p_after text, p_from text, p_before text, p_contended bool,
  p_limit int) RETURNS SETOF text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_name text := p_after;
BEGIN
  IF NOT p_contended THEN
    RETURN QUERY SELECT n.name FROM (SELECT s.name FROM @S.slots s WHERE s.ns = p_ns
        AND s.name > p_after COLLATE "C" AND s.name >= p_from COLLATE "C"
        ORDER BY s.name LIMIT p_limit) n
      WHERE p_before IS NULL OR n.name < p_before COLLATE "C";
    RETURN;
  END IF;
  FOR i IN 1 .. p_limit LOOP
    SELECT c.name INTO v_name FROM @S.claims c WHERE c.ns = p_ns AND NOT c.held
      AND c.name > v_name COLLATE "C" AND c.name >= p_from COLLATE "C" ORDER BY c.name LIMIT 1;
    EXIT WHEN NOT FOUND OR v_name >= p_before COLLATE "C";
    RETURN NEXT v_name;
  END LOOP;
END $$;

-- Deletes rows that no call would touch again: expired tombstones, cells that are needed no more, watches of
-- clients that are gone, and slots whose claims have all expired. Skips what another transaction has locked.
CREATE FUNCTION @S.sweep(p_ns int, p_async bool) RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  v_now bigint := @S.clock();
  v_names text[];
BEGIN
  DELETE FROM @S.tombs t WHERE t.ns = p_ns AND t.until <= v_now;
  v_names := ARRAY(SELECT s.name FROM @S.slots s WHERE s.ns = p_ns
    AND (s.calm <= v_now OR (s.holders = 0 AND s.waiting = 0 AND s.closed <= v_now))
    ORDER BY s.name LIMIT 500 FOR UPDATE SKIP LOCKED);
  IF v_names <> '{}' THEN
    RETURN QUERY SELECT * FROM @S.touch_expired(p_ns, p_async, v_names);
    DELETE FROM @S.slots s WHERE s.ns = p_ns AND s.name = ANY (v_names) AND s.holders = 0
      AND s.waiting = 0 AND s.closed <= v_now;
  END IF;
  PERFORM @S.sweep_watches(p_ns, NULL);
  PERFORM @S.sweep_cells(p_ns, v_now, 500);
END $$;
