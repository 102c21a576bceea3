-- connect: what every client does first on each connection: agrees on the terms of the namespace, and
-- notices a cluster that may have lost what was committed last. Answers: ok with the namespace's number
-- and for how much longer nobody comes in; lease or durability with what stands, and for a lease who
-- relies on it.
--
-- The longest lease changes if no other client is connected and no claim lives. A connection that is a
-- session of its own has an advisory lock on the namespace, shared, for as long as it lives: who changes
-- the lease needs the same lock alone. Behind a pooler no session belongs to a client; there each call
-- has that lock until its transaction ends, and checks the terms again (here). All of this is under the
-- lock of the row of the namespace, so that clients which connect at once come one after the other.
CREATE FUNCTION @S.connect(p_name text, p_max_lease bigint, p_durability text, p_pooled bool,
  OUT kind text, OUT ns int, OUT closed_for bigint, OUT stands text, OUT there text[])
LANGUAGE plpgsql VOLATILE AS $$
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
  SELECT * INTO STRICT p FROM @S.spaces x WHERE x.name = p_name FOR UPDATE;
  ns := p.ns;
  IF p.durability <> p_durability THEN
    kind := 'durability';
    stands := p.durability;
    RETURN;
  END IF;
  IF p.max_lease <> p_max_lease THEN
    there := @S.who_relies_on(p.ns);
    IF cardinality(there) > 0 THEN
      kind := 'lease';
      stands := p.max_lease::text;
      RETURN;
    END IF;
    -- If a crash has lost claims, they may live for as long as the lease that stood.
    IF p_durability = 'grace' THEN PERFORM @S.grace(p.ns); END IF;
    UPDATE @S.spaces x SET max_lease = p_max_lease WHERE x.ns = p.ns;
  END IF;
  IF NOT p_pooled THEN PERFORM pg_advisory_lock_shared('@S.spaces'::regclass::oid::int, p.ns); END IF;
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

-- Who relies on the terms of a namespace: clients that are connected, and claims that live; a few of
-- them. If nobody does, the caller has the lock of the namespace alone until its transaction ends.
CREATE FUNCTION @S.who_relies_on(p_ns int) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_there text[];
BEGIN
  IF NOT pg_try_advisory_xact_lock('@S.spaces'::regclass::oid::int, p_ns) THEN
    v_there := ARRAY(SELECT format('%s is connected from %s by backend %s',
        coalesce(nullif(a.application_name, ''), 'a client'),
        coalesce(host(a.client_addr), 'this host'), l.pid)
      FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
      WHERE l.locktype = 'advisory' AND l.classid = '@S.spaces'::regclass::oid
        AND l.objid = p_ns::oid AND l.objsubid = 2 AND l.pid <> pg_backend_pid() LIMIT 8);
    RETURN CASE WHEN cardinality(v_there) > 0 THEN v_there ELSE ARRAY['a client comes or goes'] END;
  END IF;
  RETURN ARRAY(SELECT format('%s:%s%s %s "%s"', c.host, c.pid,
      coalesce(format(' ''%s''', c.label), ''),
      CASE WHEN c.held THEN 'holds' ELSE 'waits for' END, c.name)
    FROM @S.claims c WHERE c.ns = p_ns AND c.expires > @S.clock() LIMIT 8);
END $$;

-- here: what each call behind a pooler begins with: the terms must be those that its client knows, and
-- stay so until the call is done.
CREATE FUNCTION @S.here(p_ns int, p_max_lease bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_stands bigint;
BEGIN
  PERFORM pg_advisory_xact_lock_shared('@S.spaces'::regclass::oid::int, p_ns);
  SELECT p.max_lease INTO v_stands FROM @S.spaces p WHERE p.ns = p_ns;
  IF v_stands IS DISTINCT FROM p_max_lease THEN
    RAISE EXCEPTION 'it was % microseconds, and is % now', p_max_lease, v_stands
      USING ERRCODE = 'TN001';
  END IF;
END $$;
