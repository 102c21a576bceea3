-- refuse_victim: ends the wait of a claim to break a deadlock, if all facts of the verdict stand. Replies, by
-- kind:
--
-- d  done: the claim waits no longer, and its session was signalled
-- n  a fact does not stand any more: nothing was changed but what time had ended already
-- t  not a reply but a signal to deliver: name = session, texts = its text
--
-- In ledger/: refuse_victim has the same name there; facts_stand includes `owners_are_stuck`.

-- Returns the name whose holders say that an owner has another flow of control.
CREATE FUNCTION @S.marker(p_owner uuid) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT chr(1) || 'concurrent:' || replace(p_owner::text, '-', '') $$;

-- Returns whether these claims hold and wait where they did, no marker is held, no owner waits with a claim
-- that is not named, and nested in none that waits is another that does.
CREATE FUNCTION @S.facts_stand(p_ns int, p_hold_names text[], p_holds uuid[], p_wait_names text[],
  p_waits uuid[], p_owners uuid[], p_markers text[], p_now bigint) RETURNS bool LANGUAGE plpgsql
VOLATILE AS $$
BEGIN
  IF EXISTS (SELECT FROM unnest(p_hold_names, p_holds) f (name, id)
      WHERE NOT EXISTS (SELECT FROM @S.claims c WHERE c.ns = p_ns AND c.name = f.name
        AND c.id = f.id AND c.held IS NOT DISTINCT FROM true)) THEN
    --#path postgres verdict: a hold is gone
    RETURN false;
  END IF;
  IF EXISTS (SELECT FROM unnest(p_wait_names, p_waits) f (name, id)
      WHERE NOT EXISTS (SELECT FROM @S.claims c WHERE c.ns = p_ns AND c.name = f.name
        AND c.id = f.id AND c.held IS NOT DISTINCT FROM false)) THEN
    --#path postgres verdict: a wait is gone
    RETURN false;
  END IF;
  IF EXISTS (SELECT FROM @S.claims c WHERE c.ns = p_ns AND c.name = ANY (p_markers) AND c.held) THEN
    --#path postgres verdict: a marker is held
    RETURN false;
  END IF;
  IF EXISTS (SELECT FROM @S.claims c WHERE c.ns = p_ns AND NOT c.held
      AND c.owner = ANY (p_owners) AND c.expires > p_now AND c.id <> ALL (p_waits)) THEN
    RETURN false;
  END IF;
  -- Nested owners that wait are few, and found by the index claims_odd.
  RETURN NOT EXISTS (SELECT FROM @S.claims c WHERE c.ns = p_ns AND NOT c.held
    AND cardinality(c.lineage) > 1 AND c.expires > p_now AND c.id <> ALL (p_waits)
    AND c.lineage && ARRAY(SELECT w.owner FROM @S.claims w
      WHERE w.ns = p_ns AND w.id = ANY (p_waits) AND w.name = ANY (p_wait_names)));
END $$;

CREATE FUNCTION @S.refuse_victim(p_ns int, p_async bool, p_name text, p_id uuid, p_hold_names text[],
  p_holds uuid[], p_wait_names text[], p_waits uuid[], p_owners uuid[], p_reason text)
RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
  c @S.claims;
  v_markers text[] := ARRAY(SELECT @S.marker(o) FROM unnest(p_owners) o);
  -- The rows of markers are made, so that no owner gets one before this transaction has ended.
  v_names text[] := @S.lock_slots(p_ns, p_hold_names || p_wait_names || v_markers, true);
  v_now bigint := @S.begin_step(p_ns, v_names, p_async);
  v_name text;
BEGIN
  FOREACH v_name IN ARRAY v_names LOOP PERFORM @S.touch(p_ns, v_name, v_now); END LOOP;
  SELECT * INTO c FROM @S.claims x WHERE x.ns = p_ns AND x.name = p_name AND x.id = p_id
    AND x.held IS NOT DISTINCT FROM false;
  a.kind := 'n';
  IF FOUND AND @S.facts_stand(p_ns, p_hold_names, p_holds, p_wait_names, p_waits, p_owners, v_markers,
      v_now) THEN
    --#path postgres verdict: refused
    a.kind := 'd';
    PERFORM @S.bury(p_ns, p_id, v_now + c.lease, p_reason);
    PERFORM @S.remove(p_ns, p_id, coalesce(c.parts, ARRAY[c.name]), v_now);
    IF c.session IS NOT NULL THEN
      PERFORM @S.add_signal(c.session, 'e ' || p_id || ' ' || p_reason);
    END IF;
  END IF;
  RETURN NEXT a;
  RETURN QUERY SELECT * FROM @S.end_step(p_ns, v_names, v_now, p_async);
END $$;
