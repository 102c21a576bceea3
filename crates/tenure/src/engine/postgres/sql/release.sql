-- release: releases or withdraws claims. One reply row for each claim, by kind:
--
-- d  it held or waited                     o  it was not known
-- t  not a reply but a signal to deliver: name = session, texts = its text, place = 1 if notify_later sends it
--
-- release_one has two short paths for a claim whose copies are all accounted for (not p_uncertain):
-- 1. The claim is alone in its slot (slots.lone), has not expired, and no lock delay is in force: both
--    rows are deleted.
-- 2. hand_off: the hand-off to the first waiter, a writer.
-- Otherwise it calls release.
--
-- In ledger/: release and release_one are `release_one`, bury is `bury`. hand_off is what `remove` and
-- `promote` come to for the case that its head describes.

-- Writes a tombstone: a late copy of the claim is refused until then.
CREATE FUNCTION @S.bury(p_ns int, p_id uuid, p_until bigint, p_reason text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO @S.tombs (ns, id, until, reason) VALUES (p_ns, p_id, p_until, p_reason)
    ON CONFLICT (ns, id) DO UPDATE SET until = EXCLUDED.until, reason = EXCLUDED.reason;
END $$;

-- Deletes a few expired tombstones, about twice as many as this call has written (a handshake: some 500), so
-- that they do not pile up where no client lives long enough to sweep. Skips rows that another client has
-- locked, so it never waits.
CREATE FUNCTION @S.clear_tombs(p_ns int, p_now bigint, p_written int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  DELETE FROM @S.tombs t USING (SELECT x.id FROM @S.tombs x
      WHERE x.ns = p_ns AND x.until <= p_now ORDER BY x.until LIMIT 8 + 2 * p_written
      FOR UPDATE SKIP LOCKED) gone
    WHERE t.ns = p_ns AND t.id = gone.id;
END $$;

-- A batch of claims. p_names has the names of all claims in turn, p_counts how many each has.
CREATE FUNCTION @S.release(p_ns int, p_async bool, p_ids uuid[], p_counts int[], p_names text[],
  p_leases bigint[], p_uncertain bool[]) RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  -- A slot without a row cannot be locked, so rows are made where a late copy of a claim may arrive.
  v_all text[] := @S.lock_slots(p_ns, p_names, true = ANY (p_uncertain));
  v_now bigint := @S.begin_step(p_ns, v_all, p_async);
  v_names text[];
  v_name text;
  v_from int := 1;
  s @S.slots;
  a @S.answer;
BEGIN
  FOR i IN 1 .. cardinality(p_ids) LOOP
    v_names := p_names[v_from:v_from + p_counts[i] - 1];
    v_from := v_from + p_counts[i];
    FOREACH v_name IN ARRAY v_names LOOP
      SELECT * INTO s FROM @S.slots x WHERE x.ns = p_ns AND x.name = v_name;
      IF FOUND THEN s := @S.expire(s, v_now); END IF;
    END LOOP;
    IF p_uncertain[i] THEN PERFORM @S.bury(p_ns, p_ids[i], v_now + p_leases[i], NULL); END IF;
    a.item := i;
    a.kind := CASE WHEN @S.remove(p_ns, p_ids[i], v_names, v_now) THEN 'd' ELSE 'o' END;
    RETURN NEXT a;
  END LOOP;
  RETURN QUERY SELECT * FROM @S.end_step(p_ns, v_all, v_now, p_async);
  IF true = ANY (p_uncertain) THEN
    PERFORM @S.clear_tombs(p_ns, v_now, cardinality(array_remove(p_uncertain, false)));
  END IF;
END $$;

-- The hand-off on the short path: releases the only holder and grants the lock to the first waiter, a
-- writer. Conditions: no sets, no upgrades, no nested owners, no expired claim, no lock delay, no grace, and
-- the waiter's owner has no other ticket. Returns no row where one of these is not met. A reader at the head of the queue takes the long path,
-- because the readers behind it are granted with it.
CREATE FUNCTION @S.hand_off(p_ns int, p_async bool, p_id uuid, p_name text, p_later bool)
RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
  s @S.slots;
  t @S.claims;
  v_now bigint;
  v_text text;
BEGIN
  SELECT * INTO s FROM @S.slots x WHERE x.ns = p_ns AND x.name = p_name FOR UPDATE;
  -- The long path has to lock other slots too, in order, so the lock of this one is returned first.
  IF s.entangled > 0 THEN RAISE EXCEPTION 'more slots' USING ERRCODE = 'TN000'; END IF;
  v_now := @S.clock();
  IF s.shape > 0 OR s.holders <> 1 OR s.waiting = 0 OR s.ahead > 0 OR s.nested > 0
    OR s.groups IS NOT NULL OR s.closed > 0 OR s.calm <= v_now
    OR (p_async AND @S.grace(p_ns) > v_now) THEN RETURN; END IF;
  SELECT * INTO t FROM @S.claims c WHERE c.ns = p_ns AND c.name = p_name AND NOT c.held
    AND c.ahead = false ORDER BY c.arrival LIMIT 1;
  -- An expired ticket was excluded above, because calm is never after any expiry. Compared all the same.
  IF NOT FOUND OR t.weight < @S.capacity(s.shape) OR t.expires <= v_now
    OR EXISTS (SELECT FROM @S.claims c WHERE c.ns = p_ns
    AND c.name = p_name AND NOT c.held AND c.owner = t.owner AND c.id <> t.id) THEN RETURN; END IF;
  DELETE FROM @S.claims WHERE ns = p_ns AND name = p_name AND id = p_id
    AND held IS NOT DISTINCT FROM true;
  IF NOT FOUND THEN RETURN; END IF;
  --#path postgres release: handed off
  t.fence := @S.mint();
  UPDATE @S.claims SET held = true, fence = t.fence, number = t.fence, since = v_now
    WHERE ns = p_ns AND name = p_name AND id = t.id;
  UPDATE @S.slots SET waiting = waiting - 1, weight = t.weight,
      lone = CASE WHEN waiting = 1 THEN t.id END WHERE ns = p_ns AND name = p_name;
  a.item := 1;
  a.kind := 'd';
  RETURN NEXT a;
  IF t.session IS NULL THEN RETURN; END IF;
  v_text := 'g ' || t.id || ' ' || t.arrival || ' ' || t.fence;
  IF p_async THEN
    PERFORM pg_notify('tenure:' || t.session, v_text);
  ELSE
    IF p_later THEN
      PERFORM set_config('tenure.later', coalesce(current_setting('tenure.later', true), '')
        || t.session || ' ' || v_text || E'\n', false);
      a.place := 1;
    END IF;
    a.kind := 't';
    a.name := t.session;
    a.texts := ARRAY[v_text];
    RETURN NEXT a;
  END IF;
END $$;

-- Sends the signals that hand_off has left in the setting tenure.later. Written by the client directly
-- behind the release; a transaction of its own, whose commit does not wait for the disk.
CREATE FUNCTION @S.notify_later() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_later text := current_setting('tenure.later', true);
  v_line text;
BEGIN
  IF coalesce(v_later, '') = '' THEN RETURN; END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM set_config('tenure.later', '', false);
  FOREACH v_line IN ARRAY string_to_array(rtrim(v_later, E'\n'), E'\n') LOOP
    PERFORM pg_notify('tenure:' || left(v_line, 36), substr(v_line, 38));
  END LOOP;
END $$;

-- One claim on one name. Short paths (see the head) or release.
CREATE FUNCTION @S.release_one(p_ns int, p_async bool, p_id uuid, p_name text, p_lease bigint,
  p_uncertain bool, p_later bool) RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
BEGIN
  IF NOT p_uncertain THEN
    -- One statement, because the cost of a statement exceeds that of the deletes.
    WITH slot AS (
      DELETE FROM @S.slots s WHERE s.ns = p_ns AND s.name = p_name AND s.lone = p_id
        AND s.calm > @S.clock() AND s.closed <= @S.clock() RETURNING s.ns)
    DELETE FROM @S.claims c WHERE c.ns = p_ns AND c.name = p_name AND c.id = p_id
      AND EXISTS (SELECT FROM slot);
    IF FOUND THEN
      --#path postgres release: a lone holder
      a.item := 1;
      a.kind := 'd';
      RETURN NEXT a;
      RETURN;
    END IF;
    --#path postgres release: a lone holder, expired if @S.lone_expired(p_ns, ARRAY[p_name], ARRAY[p_id])
    BEGIN
      RETURN QUERY SELECT * FROM @S.hand_off(p_ns, p_async, p_id, p_name, p_later);
      IF FOUND THEN RETURN; END IF;
    EXCEPTION WHEN SQLSTATE 'TN000' THEN
      -- Other slots are concerned: release locks them.
      --#path postgres release: more slots
    END;
  END IF;
  --#path postgres release: one slot, by the rules
  RETURN QUERY SELECT * FROM @S.release(p_ns, p_async, ARRAY[p_id], ARRAY[1], ARRAY[p_name],
    ARRAY[p_lease], ARRAY[p_uncertain]);
END $$;
