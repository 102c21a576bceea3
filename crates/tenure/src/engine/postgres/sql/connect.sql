-- connect: part of the handshake of every connection. Compares the terms of the namespace with those that
-- the client states, and detects a database cluster that may have lost its last commits. Replies, by kind:
--
-- ok          ns = number of the namespace, closed_for = how long no new grants are made
-- lease       refused: stands = the longest lease in force, there = up to 8 clients or claims that rely on it
-- durability  refused: stands = the durability in force
--
-- The longest lease can be changed while no other client is connected and no claim lives. For as long as
-- a connection lives it has a shared advisory lock on the namespace; a change needs the same lock
-- exclusively. Behind a pooler no server session belongs to a client: there each call has the lock until
-- its transaction ends, and checks the terms again (check_terms). The row of the namespace is locked
-- throughout, so that concurrent handshakes are serialized.
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
    -- A new namespace has no grants that a crash could have lost: no grace.
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
    there := @S.users_of_terms(p.ns);
    IF cardinality(there) > 0 THEN
      kind := 'lease';
      stands := p.max_lease::text;
      RETURN;
    END IF;
    -- Claims that a crash has lost may live for as long as the previous longest lease.
    IF p_durability = 'grace' THEN PERFORM @S.grace(p.ns); END IF;
    UPDATE @S.spaces x SET max_lease = p_max_lease WHERE x.ns = p.ns;
  END IF;
  IF NOT p_pooled THEN PERFORM pg_advisory_lock_shared('@S.spaces'::regclass::oid::int, p.ns); END IF;
  IF p.history <> v_history THEN
    UPDATE @S.spaces x SET history = v_history WHERE x.ns = p.ns AND x.history <> v_history;
    IF FOUND THEN
      -- This cluster may not know the last fences, but none of them was far ahead of the clock.
      PERFORM @S.leap();
    END IF;
  END IF;
  kind := 'ok';
  closed_for := 0;
  IF p_durability = 'grace' THEN closed_for := greatest(@S.grace(p.ns) - @S.clock(), 0); END IF;
  -- Programs that live for a moment never sweep, so each handshake deletes a part of what they left.
  PERFORM @S.clear_tombs(p.ns, @S.clock(), 250);
END $$;

-- Returns descriptions of up to 8 connected clients or living claims that rely on the terms of a namespace.
-- If there are none, the caller has the exclusive lock of the namespace until its transaction ends.
CREATE FUNCTION @S.users_of_terms(p_ns int) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
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

-- check_terms: the first statement of each transaction behind a pooler. Fails if the terms are no longer those that
-- the client knows, and keeps them unchanged until the transaction ends.
CREATE FUNCTION @S.check_terms(p_ns int, p_max_lease bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
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
