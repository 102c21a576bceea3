-- renew: extends the leases of claims, both holders and waiters. One reply row for each claim, by kind:
--
-- g  it holds: arrival, fences             q  it waits: place, first expiry if any, arrival
-- x  gone: texts = the reason, if it was evicted
-- t  not a reply but a signal to deliver: name = session, texts = its text
--
-- Short path: claims that are alone in their slots (slots.lone) are renewed by one UPDATE. It is taken for
-- claims on one name that have not expired, outside of a lock delay, and whose new expiry does not fall
-- before slots.calm.
--
-- In ledger/: renew_step is `renew_one`, with `group_fence` and `epitaph`.

-- Renews one claim. Its slots are locked and were touched.
CREATE FUNCTION @S.renew_step(p_ns int, p_id uuid, p_names text[], p_lease bigint, p_item int,
  p_now bigint) RETURNS @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
  c @S.claims;
  v_group jsonb;
  v_count int;
BEGIN
  UPDATE @S.claims SET expires = p_now + p_lease
    WHERE ns = p_ns AND name = ANY (p_names) AND id = p_id;
  GET DIAGNOSTICS v_count = ROW_COUNT;
  IF v_count < cardinality(p_names) THEN
    -- A claim that has lost one part is removed as a whole.
    IF v_count > 0 THEN PERFORM @S.remove(p_ns, p_id, p_names, p_now); END IF;
    a.item := p_item;
    a.kind := 'x';
    a.texts := ARRAY(SELECT t.reason FROM @S.tombs t
      WHERE t.ns = p_ns AND t.id = p_id AND t.until > p_now AND t.reason IS NOT NULL);
    RETURN a;
  END IF;
  UPDATE @S.slots SET calm = p_now + p_lease
    WHERE ns = p_ns AND name = ANY (p_names) AND calm > p_now + p_lease;
  FOR c IN SELECT * FROM @S.claims x WHERE x.ns = p_ns AND x.name = ANY (p_names) AND x.id = p_id
      AND x.held AND x.grp IS NOT NULL ORDER BY x.name LOOP
    SELECT s.groups -> c.grp::text INTO v_group FROM @S.slots s
      WHERE s.ns = p_ns AND s.name = c.name;
    IF (v_group ->> 's')::bool THEN
      -- A member of the group that expired may still write with the fence, so the others get a new one.
      v_group := v_group || jsonb_build_object('f', @S.mint(), 's', false);
      UPDATE @S.slots SET groups = groups || jsonb_build_object(c.grp::text, v_group)
        WHERE ns = p_ns AND name = c.name;
    END IF;
    UPDATE @S.claims SET fence = (v_group ->> 'f')::bigint
      WHERE ns = p_ns AND name = c.name AND id = p_id AND fence <> (v_group ->> 'f')::bigint;
  END LOOP;
  RETURN @S.standing(p_ns, p_id, p_names, p_item, p_now);
END $$;

-- A batch of claims. p_names has the names of all claims in turn, p_counts how many each has.
CREATE FUNCTION @S.renew(p_ns int, p_async bool, p_ids uuid[], p_counts int[], p_names text[],
  p_leases bigint[]) RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_all text[] := @S.lock_slots(p_ns, p_names, false);
  v_now bigint := @S.begin_step(p_ns, v_all, p_async);
  v_done int[] := '{}';
  v_name text;
  v_from int := 1;
  a @S.answer;
BEGIN
  -- Short path: nothing changes but the expiry.
  IF 1 = ALL (p_counts) THEN
    FOR a.item, a.arrival, a.fences IN
      UPDATE @S.claims c SET expires = v_now + u.lease
      FROM unnest(p_ids, p_names, p_leases) WITH ORDINALITY u (id, name, lease, nth)
      JOIN @S.slots s ON s.ns = p_ns AND s.name = u.name AND s.lone = u.id
        AND s.calm <= v_now + u.lease AND s.closed <= v_now
      WHERE c.ns = p_ns AND c.name = u.name AND c.id = u.id AND c.expires > v_now
      RETURNING u.nth::int, c.arrival, ARRAY[c.fence]
    LOOP
      --#path postgres renew: a lone holder
      a.kind := 'g';
      v_done := v_done || a.item;
      RETURN NEXT a;
    END LOOP;
    IF cardinality(v_done) = cardinality(p_ids) THEN RETURN; END IF;
  END IF;
  --#path postgres renew: a lone holder, expired if @S.lone_expired(p_ns, p_names, p_ids)
  --#path postgres renew: a lone holder, for a shorter time if @S.lone_outlasts(p_ns, p_names, p_ids, p_leases)
  --#path postgres renew: by the rules
  FOR v_name IN SELECT DISTINCT n COLLATE "C" FROM unnest(p_names) n ORDER BY 1 LOOP
    PERFORM @S.touch(p_ns, v_name, v_now);
  END LOOP;
  FOR i IN 1 .. cardinality(p_ids) LOOP
    IF i <> ALL (v_done) THEN
      RETURN NEXT @S.renew_step(p_ns, p_ids[i], p_names[v_from:v_from + p_counts[i] - 1],
        p_leases[i], i, v_now);
    END IF;
    v_from := v_from + p_counts[i];
  END LOOP;
  RETURN QUERY SELECT * FROM @S.end_step(p_ns, v_all, v_now, p_async);
END $$;
