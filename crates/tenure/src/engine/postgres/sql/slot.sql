-- One slot: inserting, granting, ending and expiring its holds and tickets. The row of a slot has sums over
-- its claims (see tables.sql), so that most decisions read no claims; each function that changes claims
-- updates the sums in the same step. Each takes the locked row and returns the new one.
--
-- In ledger/: grant_part is `grant` with `fence_for`, end_hold is `end_hold` with `leave_group`, base_of is
-- `base`, owners_weight is `kin_weight`, any_holds is `kin` > 0, remove_ticket and left_queue are
-- `Line::remove`; owner_weight, kin_of, owner_holds, enqueue and expire have the same names there.

-- Returns the weight of an owner's heaviest hold; 0 if it has none.
CREATE FUNCTION @S.owner_weight(s @S.slots, p_owner uuid) RETURNS bigint LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN (SELECT coalesce(max(c.weight), 0) FROM @S.claims c
    WHERE c.ns = s.ns AND c.name = s.name AND c.held AND c.owner = p_owner);
END $$;

-- Returns the sum of the weights of these owners, each by its heaviest hold.
CREATE FUNCTION @S.owners_weight(s @S.slots, p_owners uuid[]) RETURNS bigint LANGUAGE plpgsql
VOLATILE AS $$
BEGIN
  RETURN (SELECT coalesce(sum(o.weight), 0) FROM (SELECT max(c.weight) AS weight FROM @S.claims c
    WHERE c.ns = s.ns AND c.name = s.name AND c.held AND c.owner = ANY (p_owners)
    GROUP BY c.owner) o);
END $$;

-- Returns whether any of these owners holds the slot.
CREATE FUNCTION @S.any_holds(s @S.slots, p_owners uuid[]) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN EXISTS (SELECT FROM @S.claims c
    WHERE c.ns = s.ns AND c.name = s.name AND c.held AND c.owner = ANY (p_owners));
END $$;

-- Returns the tickets of an owner and its descendants, by arrival.
CREATE FUNCTION @S.kin_of(s @S.slots, p_owner uuid) RETURNS SETOF @S.claims LANGUAGE plpgsql
VOLATILE AS $$
BEGIN
  IF s.waiting = 0 THEN RETURN; END IF;
  IF s.nested = 0 THEN
    RETURN QUERY SELECT c.* FROM @S.claims c
      WHERE c.ns = s.ns AND c.name = s.name AND NOT c.held AND c.owner = p_owner
      ORDER BY c.arrival;
    RETURN;
  END IF;
  RETURN QUERY SELECT k.* FROM (
      SELECT c.* FROM @S.claims c
      WHERE c.ns = s.ns AND c.name = s.name AND NOT c.held AND c.owner = p_owner
      UNION ALL
      SELECT c.* FROM @S.claims c
      WHERE c.ns = s.ns AND c.name = s.name AND NOT c.held AND cardinality(c.lineage) > 1
        AND c.owner <> p_owner AND p_owner = ANY (c.lineage)) k
    ORDER BY k.arrival;
END $$;

-- Returns the hold that a nested or repeated claim is based on: the heaviest of its own owner, the latest
-- of equal ones; otherwise that of the nearest ancestor that holds.
CREATE FUNCTION @S.base_of(s @S.slots, p_lineage uuid[]) RETURNS SETOF @S.claims LANGUAGE plpgsql
VOLATILE ROWS 1 AS $$
BEGIN
  IF s.shape > 0 OR s.holders = 0 THEN RETURN; END IF;
  RETURN QUERY SELECT c.* FROM @S.claims c
    WHERE c.ns = s.ns AND c.name = s.name AND c.held AND c.owner = ANY (p_lineage)
    ORDER BY array_position(p_lineage, c.owner), c.weight DESC, c.number DESC LIMIT 1;
END $$;

-- Called when an owner begins or ceases to hold the slot: its tickets and those of its descendants move
-- ahead of the queue, or back to their places by arrival.
CREATE FUNCTION @S.owner_holds(s @S.slots, p_owner uuid, p_holds bool) RETURNS @S.slots
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_moved int;
BEGIN
  IF s.waiting = 0 OR (NOT p_holds AND s.ahead = 0) THEN RETURN s; END IF;
  UPDATE @S.claims t SET ahead = p_holds
    FROM @S.kin_of(s, p_owner) k
    WHERE t.ns = s.ns AND t.name = s.name AND t.id = k.id AND t.ahead <> p_holds
      AND (p_holds OR NOT @S.any_holds(s, k.lineage));
  GET DIAGNOSTICS v_moved = ROW_COUNT;
  IF v_moved > 0 THEN
    UPDATE @S.slots SET ahead = ahead + CASE WHEN p_holds THEN v_moved ELSE -v_moved END
      WHERE ns = s.ns AND name = s.name RETURNING * INTO s;
  END IF;
  RETURN s;
END $$;

-- Removes a ticket from the queue.
CREATE FUNCTION @S.remove_ticket(s @S.slots, p_id uuid) RETURNS @S.slots LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  t @S.claims;
BEGIN
  IF s.waiting = 0 THEN RETURN s; END IF;
  DELETE FROM @S.claims WHERE ns = s.ns AND name = s.name AND id = p_id
      AND held IS NOT DISTINCT FROM false
    RETURNING * INTO t;
  IF FOUND THEN s := @S.left_queue(s, t); END IF;
  RETURN s;
END $$;

-- Updates the sums of a slot after a ticket has left its queue.
CREATE FUNCTION @S.left_queue(s @S.slots, t @S.claims) RETURNS @S.slots LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  UPDATE @S.slots SET waiting = waiting - 1, ahead = ahead - t.ahead::int,
      nested = nested - (cardinality(t.lineage) > 1)::int,
      replacing = replacing - (t.replaces IS NOT NULL)::int,
      entangled = entangled - (t.parts IS NOT NULL OR t.replaces IS NOT NULL)::int
    WHERE ns = s.ns AND name = s.name RETURNING * INTO s;
  RETURN s;
END $$;

-- Appends a claim to the queue as a ticket; ahead of it if its lineage holds the slot.
CREATE FUNCTION @S.enqueue(s @S.slots, c @S.claims) RETURNS @S.slots LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  c.name := s.name;
  c.held := false;
  c.reserved := false;
  c.ahead := s.shape < 0 AND s.holders > 0 AND @S.any_holds(s, c.lineage);
  c.joined := s.joined + 1;
  INSERT INTO @S.claims SELECT (c).*;
  UPDATE @S.slots SET waiting = waiting + 1, ahead = ahead + c.ahead::int, joined = joined + 1,
      nested = nested + (cardinality(c.lineage) > 1)::int,
      replacing = replacing + (c.replaces IS NOT NULL)::int,
      entangled = entangled + (c.parts IS NOT NULL OR c.replaces IS NOT NULL)::int,
      calm = least(calm, c.expires), lone = NULL
    WHERE ns = s.ns AND name = s.name RETURNING * INTO s;
  RETURN s;
END $$;

-- Grants a claim one slot, from the queue (p_waited) or at once, with a fence. A claim that is not heavier
-- than its base shares the base's fence; a heavier one is an upgrade and gets a new fence.
CREATE FUNCTION @S.grant_part(s @S.slots, c @S.claims, p_waited bool, p_now bigint)
RETURNS @S.slots LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  b @S.claims;
  v_key text;
  v_group jsonb;
  v_before bigint := 0;
BEGIN
  c.number := @S.mint();
  c.fence := c.number;
  c.grp := NULL;
  IF s.shape < 0 AND s.holders > 0 THEN
    v_before := @S.owner_weight(s, c.owner);
    SELECT * INTO b FROM @S.base_of(s, c.lineage);
    IF FOUND THEN
      c.grp := coalesce(b.grp, b.fence);
      v_key := c.grp::text;
      IF b.grp IS NULL THEN
        UPDATE @S.claims SET grp = c.grp WHERE ns = s.ns AND name = s.name AND id = b.id;
      END IF;
      v_group := coalesce(s.groups -> v_key,
        jsonb_build_object('f', b.fence, 's', false, 'm', 1));
      IF NOT (v_group ->> 's')::bool AND b.weight >= c.weight THEN
        c.fence := (v_group ->> 'f')::bigint;
      END IF;
      s.groups := coalesce(s.groups, '{}') || jsonb_build_object(v_key,
        jsonb_build_object('f', c.fence, 's', false, 'm', (v_group ->> 'm')::int + 1));
    END IF;
  END IF;
  IF p_waited THEN
    UPDATE @S.claims SET held = true, ahead = false, reserved = false, fence = c.fence,
        grp = c.grp, number = c.number, since = p_now
      WHERE ns = s.ns AND name = s.name AND id = c.id;
  ELSE
    c.name := s.name;
    c.held := true;
    INSERT INTO @S.claims SELECT (c).*;
  END IF;
  UPDATE @S.slots SET holders = holders + 1, groups = s.groups,
      weight = weight + CASE WHEN s.shape < 0 THEN greatest(c.weight - v_before, 0) ELSE c.weight END,
      lone = CASE WHEN holders = 0 AND waiting = 0 AND c.parts IS NULL THEN c.id END,
      calm = least(calm, c.expires)
    WHERE ns = s.ns AND name = s.name RETURNING * INTO s;
  IF s.shape < 0 AND v_before = 0 THEN s := @S.owner_holds(s, c.owner, true); END IF;
  RETURN s;
END $$;

-- Ends a hold: released, or expired at p_expired. Tickets that would replace it are removed with it.
CREATE FUNCTION @S.end_hold(s @S.slots, p_id uuid, p_expired bigint) RETURNS @S.slots
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  h @S.claims;
  v_left bigint := 0;
  v_group jsonb;
  v_orphan uuid;
BEGIN
  IF s.holders = 0 THEN RETURN s; END IF;
  DELETE FROM @S.claims WHERE ns = s.ns AND name = s.name AND id = p_id
      AND held IS NOT DISTINCT FROM true
    RETURNING * INTO h;
  IF NOT FOUND THEN RETURN s; END IF;
  IF s.shape < 0 AND s.holders > 1 THEN v_left := @S.owner_weight(s, h.owner); END IF;
  IF h.grp IS NOT NULL THEN
    v_group := s.groups -> h.grp::text;
    IF (v_group ->> 'm')::int > 1 THEN
      s.groups := s.groups || jsonb_build_object(h.grp::text, v_group || jsonb_build_object(
        'm', (v_group ->> 'm')::int - 1,
        's', (v_group ->> 's')::bool OR p_expired IS NOT NULL));
    ELSE
      s.groups := nullif(s.groups - h.grp::text, '{}');
    END IF;
  END IF;
  -- A hold that was only reserved did no work, so it has no lock delay.
  UPDATE @S.slots SET holders = holders - 1, groups = s.groups, lone = NULL,
      weight = weight - greatest(h.weight - v_left, 0),
      closed = CASE WHEN p_expired IS NULL OR h.reserved THEN closed
        ELSE greatest(closed, p_expired + h.delay) END
    WHERE ns = s.ns AND name = s.name RETURNING * INTO s;
  IF s.shape < 0 AND v_left = 0 THEN s := @S.owner_holds(s, h.owner, false); END IF;
  IF s.replacing > 0 THEN
    FOR v_orphan IN SELECT k.id FROM @S.kin_of(s, h.owner) k WHERE k.replaces = p_id LOOP
      s := @S.remove_ticket(s, v_orphan);
    END LOOP;
  END IF;
  RETURN s;
END $$;

-- Removes all expired holds and tickets, and recomputes calm.
CREATE FUNCTION @S.expire(s @S.slots, p_now bigint) RETURNS @S.slots LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_dead record;
BEGIN
  IF p_now < s.calm THEN RETURN s; END IF;
  FOR v_dead IN SELECT c.id, c.expires FROM @S.claims c
      WHERE c.ns = s.ns AND c.name = s.name AND c.held AND c.expires <= p_now
      ORDER BY c.expires, c.number LOOP
    s := @S.end_hold(s, v_dead.id, v_dead.expires);
  END LOOP;
  FOR v_dead IN SELECT c.id FROM @S.claims c
      WHERE c.ns = s.ns AND c.name = s.name AND NOT c.held AND c.expires <= p_now LOOP
    s := @S.remove_ticket(s, v_dead.id);
  END LOOP;
  UPDATE @S.slots SET calm = least(9223372036854775807,
      (SELECT min(c.expires) FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name AND c.held),
      (SELECT min(c.expires) FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name
        AND NOT c.held))
    WHERE ns = s.ns AND name = s.name RETURNING * INTO s;
  RETURN s;
END $$;
