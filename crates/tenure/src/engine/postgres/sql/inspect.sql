-- inspect: reads slots. Changes only what the passing of time has ended already. Rows, by kind:
--
-- S  a slot: name, shape, first = remaining time of a lock delay or grace
-- H  a holder of the slot before it: texts (see view_of)
-- W  a waiter, the same, in the order of the queue, and its arrival
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

-- Inspects the slots that can be reached from an owner: those it waits for, those that the holders and
-- waiters of these wait for, and so on; and the markers of all owners there. For deadlock detection.
CREATE FUNCTION @S.reach(p_ns int, p_async bool, p_owner uuid, p_most int) RETURNS SETOF @S.answer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := 0;
  a @S.answer;
BEGIN
  -- With 0 as the time, expired waits are followed too: their slots need touch_expired most.
  RETURN QUERY SELECT * FROM @S.touch_expired(p_ns, p_async,
    (SELECT array_agg(r) FROM @S.reached(p_ns, p_owner, 0) r));
  v_now := @S.clock();
  RETURN QUERY SELECT v.* FROM
    (SELECT array_agg(r.n) AS names FROM (SELECT n FROM @S.reached(p_ns, p_owner, v_now) n
      LIMIT p_most) r) found,
    LATERAL (SELECT array_agg(DISTINCT @S.marker(o.owner)) AS names FROM (
      SELECT c.owner FROM @S.claims c WHERE c.ns = p_ns AND c.name = ANY (found.names) AND c.held
      UNION ALL
      SELECT c.owner FROM @S.claims c WHERE c.ns = p_ns AND c.name = ANY (found.names)
        AND NOT c.held) o) marked,
    LATERAL @S.view(p_ns, found.names || marked.names, v_now) v;
  IF (SELECT count(*) FROM @S.reached(p_ns, p_owner, v_now)) > p_most THEN
    a.kind := 'm';
    RETURN NEXT a;
  END IF;
END $$;

-- Returns the names of the slots that can be reached from an owner, without claims that expired by p_now.
CREATE FUNCTION @S.reached(p_ns int, p_owner uuid, p_now bigint) RETURNS SETOF text
LANGUAGE sql STABLE AS $$
  WITH RECURSIVE found (owner, name) AS (
    SELECT p_owner, NULL::text COLLATE "C"
    UNION
    SELECT x.owner, x.name FROM found f
    -- An ancestor may do nothing until its descendant has ended, so waits of descendants are followed too.
    CROSS JOIN LATERAL (
      SELECT c.name FROM @S.claims c WHERE c.ns = p_ns AND NOT c.held AND c.owner = f.owner
        AND c.expires > p_now
      UNION ALL
      SELECT c.name FROM @S.claims c WHERE c.ns = p_ns AND NOT c.held AND cardinality(c.lineage) > 1
        AND f.owner = ANY (c.lineage) AND c.expires > p_now) w
    CROSS JOIN LATERAL (
      SELECT c.owner, c.name FROM @S.claims c WHERE c.ns = p_ns AND c.name = w.name AND c.held
        AND c.expires > p_now
      UNION ALL
      SELECT c.owner, c.name FROM @S.claims c WHERE c.ns = p_ns AND c.name = w.name AND NOT c.held
        AND c.expires > p_now) x)
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
