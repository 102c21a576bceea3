-- evict: ends exactly the grants with this fence and signals the reason to their sessions. Replies, by kind:
--
-- d  done: texts = the holders that were ended
-- n  no such grant: texts = the present holders
-- t  not a reply but a signal to deliver: name = session, texts = its text
CREATE FUNCTION @S.evict(p_ns int, p_async bool, p_name text, p_fence bigint, p_reason text)
RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
  c @S.claims;
  v_claims @S.claims[];
  v_names text[];
  v_part text;
  v_now bigint;
BEGIN
  LOOP
    BEGIN
      -- The evicted claims may have parts in other slots.
      v_names := @S.lock_slots(p_ns, ARRAY(SELECT unnest(h.parts) FROM @S.claims h
        WHERE h.ns = p_ns AND h.name = p_name AND h.held AND h.fence = p_fence
          AND h.parts IS NOT NULL) || p_name, false);
      v_now := @S.begin_step(p_ns, v_names, p_async);
      PERFORM @S.touch(p_ns, p_name, v_now);
      v_claims := ARRAY(SELECT h FROM @S.claims h WHERE h.ns = p_ns AND h.name = p_name
        AND h.held AND h.fence = p_fence ORDER BY h.number);
      EXIT WHEN NOT EXISTS (SELECT FROM unnest(v_claims) h WHERE NOT h.parts <@ v_names);
      RAISE EXCEPTION 'more slots are concerned' USING ERRCODE = 'TN000';
    EXCEPTION WHEN SQLSTATE 'TN000' THEN
      -- A set was granted between the read and the locks; the next turn locks its slots too.
    END;
  END LOOP;
  a.kind := CASE WHEN v_claims = '{}' THEN 'n' ELSE 'd' END;
  a.texts := '{}';
  FOR c IN SELECT * FROM @S.claims h WHERE h.ns = p_ns AND h.name = p_name AND h.held
      AND (a.kind = 'n' OR h.fence = p_fence) ORDER BY h.number LOOP
    a.texts := a.texts || @S.view_of(c, v_now);
  END LOOP;
  -- All are removed before the queues are served: no new grant may share the fence that ends.
  FOREACH c IN ARRAY v_claims LOOP
    PERFORM @S.take_out(p_ns, c.id, coalesce(c.parts, ARRAY[c.name]));
  END LOOP;
  FOREACH c IN ARRAY v_claims LOOP
    PERFORM @S.bury(p_ns, c.id, v_now + c.lease, p_reason);
    FOREACH v_part IN ARRAY coalesce(c.parts, ARRAY[c.name]) LOOP
      PERFORM @S.touch(p_ns, v_part, v_now);
    END LOOP;
    IF c.session IS NOT NULL THEN
      PERFORM @S.add_signal(c.session, 'e ' || c.id || ' ' || p_reason);
    END IF;
  END LOOP;
  RETURN NEXT a;
  RETURN QUERY SELECT * FROM @S.end_step(p_ns, v_names, v_now, p_async);
END $$;
