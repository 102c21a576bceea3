-- What the suite has in place of the real thing: a clock that it owns, and a way to end sessions.

CREATE OR REPLACE FUNCTION @S.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT current_setting('tenure.clock')::bigint $$;

-- Ends everything a session holds or waits for, as if its leases had run out now.
CREATE OR REPLACE FUNCTION @S.end_session(p_ns int, p_session uuid) RETURNS SETOF @S.answer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_all text[] := @S.lock_slots(p_ns,
    ARRAY(SELECT x.name FROM @S.slots x WHERE x.ns = p_ns), false);
  v_now bigint := @S.begin_step(p_ns, v_all, false);
  v_name text;
  v_id uuid;
  s @S.slots;
BEGIN
  FOREACH v_name IN ARRAY v_all LOOP
    SELECT * INTO s FROM @S.slots x WHERE x.ns = p_ns AND x.name = v_name;
    -- What had expired before ended then, not now.
    s := @S.expire(s, v_now);
    FOR v_id IN SELECT c.id FROM @S.claims c WHERE c.ns = p_ns AND c.name = v_name AND c.held
        AND c.session = p_session ORDER BY c.number LOOP
      s := @S.end_hold(s, v_id, v_now);
    END LOOP;
    FOR v_id IN SELECT c.id FROM @S.claims c WHERE c.ns = p_ns AND c.name = v_name AND NOT c.held
        AND c.session = p_session LOOP
      s := @S.remove_ticket(s, v_id);
    END LOOP;
    PERFORM @S.touch(p_ns, v_name, v_now);
  END LOOP;
  RETURN QUERY SELECT * FROM @S.end_step(p_ns, v_all, v_now, false);
END $$;
