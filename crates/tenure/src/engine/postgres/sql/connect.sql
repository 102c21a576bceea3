-- connect: what every client does first on each connection: agrees on the terms of the namespace, and
-- notices a cluster that may have lost what was committed last. Answers: ok with the namespace's number
-- and for how much longer nobody comes in; lease or durability with what stands.
CREATE FUNCTION @S.connect(p_name text, p_max_lease bigint, p_durability text,
  OUT kind text, OUT ns int, OUT closed_for bigint, OUT stands text) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  p @S.spaces;
  v_history text := (SELECT c.system_identifier FROM pg_control_system() c)
    || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
BEGIN
  INSERT INTO @S.spaces (name, max_lease, durability, history)
    VALUES (p_name, p_max_lease, p_durability, v_history) ON CONFLICT DO NOTHING;
  IF FOUND THEN
    -- A namespace that nobody has used: there is nothing to be waited for.
    INSERT INTO @S.alive (ns, grace) SELECT x.ns, 0 FROM @S.spaces x WHERE x.name = p_name
      ON CONFLICT (ns) DO UPDATE SET grace = 0;
  END IF;
  SELECT * INTO STRICT p FROM @S.spaces x WHERE x.name = p_name;
  ns := p.ns;
  IF p.max_lease <> p_max_lease THEN
    kind := 'lease';
    stands := p.max_lease::text;
    RETURN;
  END IF;
  IF p.durability <> p_durability THEN
    kind := 'durability';
    stands := p.durability;
    RETURN;
  END IF;
  IF p.history <> v_history THEN
    UPDATE @S.spaces x SET history = v_history WHERE x.ns = p.ns AND x.history <> v_history;
    IF FOUND THEN
      -- Fences that were given out may be unknown here, but none was far ahead of the clock.
      PERFORM @S.leap();
    END IF;
  END IF;
  kind := 'ok';
  closed_for := 0;
  IF p_durability = 'grace' THEN closed_for := greatest(@S.grace(p.ns) - @S.clock(), 0); END IF;
END $$;
