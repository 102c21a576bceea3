-- The admission rules of one slot and of sets that span slots, restated from ledger/ (slot.rs, mod.rs). The
-- differential test compares the two. Functions have the names of those in ledger/, except:
--
-- is_grantable  stands for `fits` and `unhindered`
-- promote       includes `let_in` and `tickets_again` (v_known)
-- settle        includes `replace`, `holds_all` and `grant_of`
-- add_signal    stands for a push to the ledger's list of signals, which is the setting tenure.signals here
--
-- Conventions: s is the row of a slot, which the caller has locked; t is a ticket, c a claim. A function
-- that changes the row returns the new one.

-- Returns whether a claim fits beside the living holders. Holds of its own owner and of its ancestors do
-- not count against it, except on a semaphore, where permits add up. p_kin: some of these may hold.
CREATE FUNCTION @S.fits(s @S.slots, p_lineage uuid[], p_weight int, p_kin bool, p_now bigint)
RETURNS bool LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_own bigint := 0;
  v_kin bigint := 0;
BEGIN
  IF p_kin AND s.shape < 0 AND s.holders > 0 THEN
    v_own := @S.owner_weight(s, p_lineage[1]);
    IF v_own >= p_weight THEN RETURN true; END IF;
    v_kin := v_own;
    IF cardinality(p_lineage) > 1 THEN v_kin := @S.owners_weight(s, p_lineage); END IF;
  END IF;
  IF p_now < s.closed AND v_own = 0 THEN RETURN false; END IF;
  RETURN s.weight - v_kin + p_weight <= @S.capacity(s.shape);
END $$;

-- Returns whether the claim's owner holds at least this weight already: re-entry adds nothing.
CREATE FUNCTION @S.reenters(s @S.slots, p_owner uuid, p_weight int) RETURNS bool LANGUAGE plpgsql
VOLATILE AS $$
BEGIN
  RETURN s.shape < 0 AND s.holders > 0 AND @S.owner_weight(s, p_owner) >= p_weight;
END $$;

-- Returns whether the holds of p_holder and its ancestors keep a claim of p_waiter from being granted.
CREATE FUNCTION @S.blocks(s @S.slots, p_holder uuid[], p_waiter uuid[], p_weight int) RETURNS bool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_held bigint := @S.owners_weight(s, ARRAY(SELECT o FROM unnest(p_holder) o
    WHERE o <> ALL (p_waiter)));
BEGIN
  RETURN v_held > 0 AND v_held + p_weight > @S.capacity(s.shape);
END $$;

-- Returns whether a claim may be granted before this ticket: the ticket has the same owner, or it waits
-- for the claim's own owner or ancestors, so that the claim would wait for itself.
CREATE FUNCTION @S.passes(s @S.slots, p_lineage uuid[], t @S.claims) RETURNS bool LANGUAGE plpgsql
VOLATILE AS $$
BEGIN
  RETURN t.owner = p_lineage[1] OR @S.blocks(s, p_lineage, t.lineage, t.weight);
END $$;

-- Returns whether a new claim is granted at once: it fits, and no living claim of another owner waits
-- before it.
CREATE FUNCTION @S.admits(s @S.slots, p_lineage uuid[], p_weight int, p_now bigint) RETURNS bool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  t @S.claims;
BEGIN
  IF NOT @S.fits(s, p_lineage, p_weight, true, p_now) THEN RETURN false; END IF;
  IF s.waiting = 0 OR @S.reenters(s, p_lineage[1], p_weight) THEN RETURN true; END IF;
  IF s.shape > 0 THEN RETURN false; END IF;
  IF s.holders = 0 OR NOT @S.any_holds(s, p_lineage) THEN
    RETURN NOT EXISTS (SELECT FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name
      AND NOT c.held AND c.owner <> p_lineage[1]);
  END IF;
  FOR t IN SELECT * FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name AND NOT c.held
      AND c.ahead ORDER BY c.arrival LOOP
    IF NOT @S.passes(s, p_lineage, t) THEN RETURN false; END IF;
  END LOOP;
  RETURN true;
END $$;

-- Returns the ticket of another reader that waits for an upgrade, if this claim is an upgrade too and the
-- two would wait for each other for ever: each holds what the other waits for.
CREATE FUNCTION @S.rival_upgrade(s @S.slots, p_lineage uuid[], p_weight int) RETURNS SETOF @S.claims
LANGUAGE plpgsql VOLATILE ROWS 1 AS $$
DECLARE
  b @S.claims;
  t @S.claims;
BEGIN
  IF s.ahead = 0 THEN RETURN; END IF;
  SELECT * INTO b FROM @S.base_of(s, p_lineage);
  IF NOT FOUND OR b.weight >= p_weight THEN RETURN; END IF;
  FOR t IN SELECT * FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name AND NOT c.held
      AND c.ahead ORDER BY c.arrival LOOP
    SELECT * INTO b FROM @S.base_of(s, t.lineage);
    IF FOUND AND b.weight < t.weight AND @S.blocks(s, p_lineage, t.lineage, t.weight)
      AND @S.blocks(s, t.lineage, p_lineage, p_weight) THEN
      RETURN NEXT t;
      RETURN;
    END IF;
  END LOOP;
END $$;

-- Returns whether a ticket fits and may pass all tickets before it.
CREATE FUNCTION @S.is_grantable(s @S.slots, t @S.claims, p_now bigint) RETURNS bool LANGUAGE plpgsql
VOLATILE AS $$
DECLARE
  o @S.claims;
BEGIN
  IF NOT @S.fits(s, t.lineage, t.weight, t.ahead, p_now) THEN RETURN false; END IF;
  FOR o IN SELECT * FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name AND NOT c.held
      AND c.id <> t.id AND (c.ahead > t.ahead OR (c.ahead = t.ahead AND c.arrival < t.arrival))
      ORDER BY c.ahead DESC, c.arrival LOOP
    IF NOT @S.passes(s, t.lineage, o) THEN RETURN false; END IF;
  END LOOP;
  RETURN true;
END $$;

-- Returns the first ticket, in order, that fits and does not wait behind a claim of another owner. If the
-- head of the queue has to wait, only these can be granted: lighter tickets of the head's owner, and
-- tickets whose own lineage holds what the tickets before them wait for.
CREATE FUNCTION @S.next_in_line(s @S.slots, p_now bigint) RETURNS SETOF @S.claims LANGUAGE plpgsql
VOLATILE ROWS 1 AS $$
DECLARE
  v_head @S.claims;
  v_found @S.claims;
  t @S.claims;
  v_owner uuid;
BEGIN
  SELECT * INTO v_head FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name AND NOT c.held
    AND c.ahead = (s.ahead > 0) ORDER BY c.arrival LIMIT 1;
  IF NOT FOUND THEN RETURN; END IF;
  IF @S.fits(s, v_head.lineage, v_head.weight, v_head.ahead, p_now) THEN
    RETURN NEXT v_head;
    RETURN;
  END IF;
  IF s.shape > 0 THEN RETURN; END IF;
  IF v_head.weight > 1 THEN
    FOR t IN SELECT * FROM @S.kin_of(s, v_head.owner) k WHERE k.weight < v_head.weight LOOP
      IF @S.is_grantable(s, t, p_now) THEN
        v_found := t;
        EXIT;
      END IF;
    END LOOP;
  END IF;
  IF v_head.ahead THEN
    FOR v_owner IN SELECT DISTINCT c.owner FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name
        AND c.held AND c.owner <> ALL (v_head.lineage) LOOP
      FOR t IN SELECT * FROM @S.kin_of(s, v_owner) LOOP
        EXIT WHEN v_found.arrival <= t.arrival;
        IF @S.is_grantable(s, t, p_now) THEN
          v_found := t;
          EXIT;
        END IF;
      END LOOP;
    END LOOP;
  END IF;
  IF v_found.id IS NOT NULL THEN RETURN NEXT v_found; END IF;
END $$;

-- Serves the queue: grants, in order, all tickets that fit now. Returns them.
CREATE FUNCTION @S.promote(s @S.slots, p_now bigint) RETURNS SETOF @S.claims LANGUAGE plpgsql
VOLATILE AS $$
DECLARE
  t @S.claims;
  v_again @S.claims;
  -- Other tickets of owners that were granted, not heavier than what the owner holds now.
  v_known uuid[] := '{}';
  v_grows bool;
  v_weight bigint;
BEGIN
  WHILE s.waiting > 0 AND s.holders < 10000 LOOP
    SELECT * INTO t FROM @S.next_in_line(s, p_now);
    IF cardinality(v_known) > 0 THEN
      SELECT * INTO v_again FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name AND NOT c.held
        AND c.id = ANY (v_known) ORDER BY c.arrival LIMIT 1;
      IF FOUND AND (t.id IS NULL OR v_again.arrival < t.arrival) THEN t := v_again; END IF;
    END IF;
    EXIT WHEN t.id IS NULL;
    v_grows := NOT (t.ahead AND @S.reenters(s, t.owner, t.weight));
    s := @S.left_queue(s, t);
    -- A claim has one expiry, waiting or holding: a grant does not renew it.
    s := @S.grant_part(s, t, true, p_now);
    IF v_grows AND s.shape < 0 AND s.waiting > 0 THEN
      v_weight := @S.owner_weight(s, t.owner);
      v_known := v_known || ARRAY(SELECT c.id FROM @S.claims c WHERE c.ns = s.ns
        AND c.name = s.name AND NOT c.held AND c.owner = t.owner AND c.weight <= v_weight);
    END IF;
    RETURN NEXT t;
  END LOOP;
END $$;

-- Removes expired claims from a slot, serves its queue, and signals the grants. Every verb does this
-- first, and again in slots that it has changed.
CREATE FUNCTION @S.touch(p_ns int, p_name text, p_now bigint) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  s @S.slots;
  t @S.claims;
  v_granted @S.claims[];
BEGIN
  SELECT * INTO s FROM @S.slots WHERE ns = p_ns AND name = p_name;
  IF NOT FOUND THEN RETURN; END IF;
  s := @S.expire(s, p_now);
  IF s.closed > 0 AND s.closed <= p_now THEN
    UPDATE @S.slots SET closed = 0 WHERE ns = p_ns AND name = p_name RETURNING * INTO s;
  END IF;
  -- Full, and no ticket is of an owner or descendant of a holder: no ticket can be granted.
  IF s.waiting = 0 OR (s.ahead = 0 AND s.weight >= @S.capacity(s.shape)) THEN RETURN; END IF;
  v_granted := ARRAY(SELECT g FROM @S.promote(s, p_now) g);
  FOREACH t IN ARRAY v_granted LOOP PERFORM @S.settle(t, p_now, true); END LOOP;
END $$;

-- Collects a signal for a session. end_step delivers it.
CREATE FUNCTION @S.add_signal(p_session uuid, p_what text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM set_config('tenure.signals',
    coalesce(current_setting('tenure.signals', true), '') || p_session || ' ' || p_what || E'\n', true);
END $$;

-- Called after a part of a claim was granted. If all parts are held now, the claim holds, ends the claim
-- that it replaces, and its session is signalled; otherwise the parts it has are reserved.
CREATE FUNCTION @S.settle(c @S.claims, p_now bigint, p_signal bool) RETURNS void LANGUAGE plpgsql
VOLATILE AS $$
DECLARE
  v_parts text[] := coalesce(c.parts, ARRAY[c.name]);
  v_old record;
  v_fences text;
  v_whole bool;
BEGIN
  IF c.parts IS NOT NULL THEN
    -- No part has expired here: all parts of a claim have one expiry, since they are inserted and renewed
    -- together, and a slot removes expired tickets before it serves its queue. Compared as in the ledger.
    v_whole := (SELECT count(*) FROM @S.claims x WHERE x.ns = c.ns AND x.name = ANY (v_parts)
      AND x.id = c.id AND x.held IS NOT DISTINCT FROM true AND x.expires > p_now) = cardinality(v_parts);
    UPDATE @S.claims x SET reserved = NOT v_whole WHERE x.ns = c.ns AND x.name = ANY (v_parts)
      AND x.id = c.id AND x.held IS NOT DISTINCT FROM true AND x.reserved = v_whole;
    IF NOT v_whole THEN RETURN; END IF;
  END IF;
  IF c.replaces IS NOT NULL THEN
    SELECT x.name, x.parts INTO v_old FROM @S.claims x WHERE x.ns = c.ns
      AND x.name = ANY (v_parts) AND x.id = c.replaces
      AND x.held IS NOT DISTINCT FROM true ORDER BY x.name LIMIT 1;
    IF FOUND THEN
      PERFORM @S.remove(c.ns, c.replaces, coalesce(v_old.parts, ARRAY[v_old.name]), p_now);
    END IF;
  END IF;
  IF p_signal AND c.session IS NOT NULL THEN
    SELECT string_agg(x.fence::text, ' ' ORDER BY x.name) INTO v_fences FROM @S.claims x
      WHERE x.ns = c.ns AND x.name = ANY (v_parts) AND x.id = c.id
        AND x.held IS NOT DISTINCT FROM true
      HAVING count(*) = cardinality(v_parts);
    IF FOUND AND v_fences IS NOT NULL THEN
      PERFORM @S.add_signal(c.session, 'g ' || c.id || ' ' || c.arrival || ' ' || v_fences);
    END IF;
  END IF;
END $$;

-- Removes a claim from these slots, as if released, without serving their queues. Returns whether it was
-- in any.
CREATE FUNCTION @S.take_out(p_ns int, p_id uuid, p_names text[]) RETURNS bool LANGUAGE plpgsql
VOLATILE AS $$
DECLARE
  s @S.slots;
  v_name text;
  v_count int;
  v_found bool := false;
BEGIN
  FOREACH v_name IN ARRAY p_names LOOP
    SELECT * INTO s FROM @S.slots WHERE ns = p_ns AND name = v_name;
    CONTINUE WHEN NOT FOUND;
    v_count := s.holders;
    s := @S.end_hold(s, p_id, NULL);
    IF s.holders < v_count THEN
      v_found := true;
    ELSE
      v_count := s.waiting;
      s := @S.remove_ticket(s, p_id);
      v_found := v_found OR s.waiting < v_count;
    END IF;
  END LOOP;
  RETURN v_found;
END $$;

-- Removes a claim from these slots and serves their queues. Returns whether it was in any.
CREATE FUNCTION @S.remove(p_ns int, p_id uuid, p_names text[], p_now bigint) RETURNS bool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_name text;
  v_found bool := @S.take_out(p_ns, p_id, p_names);
BEGIN
  FOREACH v_name IN ARRAY p_names LOOP PERFORM @S.touch(p_ns, v_name, p_now); END LOOP;
  RETURN v_found;
END $$;
