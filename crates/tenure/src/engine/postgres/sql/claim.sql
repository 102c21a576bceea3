-- claim: requests weight on one slot or on a set of slots. One reply row for each claim, by kind:
--
-- g  granted: arrival, fences              q  queued: place, first expiry if any, arrival
-- h  refused, held: place = number of waiters, texts = holders (see view_of)
-- s  refused, another shape: name, shape   u  refused, another upgrade: texts = about
-- f  refused, full: name, place = limit    w  refused, withdrawn      n  refused, nothing to replace
-- t  not a reply but a signal to deliver: name = session, texts = its text
--
-- Every verb is: lock_slots, begin_step (reads the clock), work on the locked slots, end_step. The
-- clock is read after the locks, because the wait for them may have been long; and each read of claims
-- is a statement of its own, so that under READ COMMITTED it sees what the locks waited for.
--
-- Short path: claim_one inserts the row of the slot; if there was none, the claim is granted without any
-- other function. It is taken if the slot has no row, the claim replaces nothing, and, where commits do
-- not wait for the disk, no grace is in force.
--
-- In ledger/: claim_step is `claim` with `admit` and `take_free_parts`, held_by is `held`, place_of is
-- `Line::place`; first_expiry, standing and refusal have the same names there.

-- Locks the rows of slots in the order of their names, together with all slots that may change with
-- them: those where a waiting claim has another part. Inserts missing rows if p_make. Returns the names
-- of all locked slots.
CREATE FUNCTION @S.lock_slots(p_ns int, p_names text[], p_make bool) RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_all text[] := ARRAY(SELECT DISTINCT n COLLATE "C" FROM unnest(p_names) n ORDER BY 1);
  v_more text[];
  v_entangled int;
BEGIN
  LOOP
    BEGIN
      IF p_make THEN
        WITH made AS (
          INSERT INTO @S.slots AS s (ns, name) SELECT p_ns, n FROM unnest(v_all) n
          ON CONFLICT (ns, name) DO UPDATE SET lone = s.lone RETURNING s.entangled)
        SELECT max(m.entangled) INTO v_entangled FROM made m;
      ELSE
        SELECT max(l.entangled) INTO v_entangled FROM (
          SELECT s.entangled FROM @S.slots s WHERE s.ns = p_ns AND s.name = ANY (v_all)
          ORDER BY s.name FOR UPDATE) l;
      END IF;
      IF coalesce(v_entangled, 0) = 0 THEN RETURN v_all; END IF;
      v_more := @S.entangled_with(p_ns, v_all);
      IF v_more = v_all THEN RETURN v_all; END IF;
      -- Locks must be taken in order, so the rollback of this block returns these first.
      RAISE EXCEPTION 'more slots are concerned' USING ERRCODE = 'TN000';
    EXCEPTION WHEN SQLSTATE 'TN000' THEN
      v_all := v_more;
    END;
  END LOOP;
END $$;

-- Returns these slots and all slots that may change when their queues are served.
CREATE FUNCTION @S.entangled_with(p_ns int, p_names text[]) RETURNS text[] LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN ARRAY(
    WITH RECURSIVE found (name) AS (
      SELECT n COLLATE "C" FROM unnest(p_names) n
      UNION
      SELECT unnest(o.parts) FROM found f CROSS JOIN LATERAL (
        SELECT c.parts FROM @S.claims c
        WHERE c.ns = p_ns AND c.name = f.name AND NOT c.held AND c.parts IS NOT NULL
        UNION ALL
        SELECT h.parts FROM @S.claims c
        JOIN @S.claims h ON h.ns = p_ns AND h.name = c.name AND h.id = c.replaces
        WHERE c.ns = p_ns AND c.name = f.name AND NOT c.held AND c.replaces IS NOT NULL
          AND h.parts IS NOT NULL) o)
    SELECT f.name FROM found f ORDER BY 1);
END $$;

-- Returns the end of the grace: no new grants before it, because a crash may have lost committed grants
-- that still live. Only where commits do not wait for the disk. A missing row in alive means a crash.
CREATE FUNCTION @S.grace(p_ns int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_grace bigint;
BEGIN
  SELECT a.grace INTO v_grace FROM @S.alive a WHERE a.ns = p_ns;
  IF FOUND THEN RETURN v_grace; END IF;
  INSERT INTO @S.alive (ns, grace)
    SELECT p_ns, @S.clock() + p.max_lease FROM @S.spaces p WHERE p.ns = p_ns
    ON CONFLICT DO NOTHING;
  -- The sequence may have lost its last numbers together with the claims that got them.
  IF FOUND THEN PERFORM @S.leap(); END IF;
  SELECT a.grace INTO STRICT v_grace FROM @S.alive a WHERE a.ns = p_ns;
  RETURN v_grace;
END $$;

-- The first step of every verb after its locks: reads the clock and closes the slots during a grace.
-- Returns the time by which the verb decides everything.
CREATE FUNCTION @S.begin_step(p_ns int, p_names text[], p_async bool) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint := @S.clock();
  v_grace bigint;
BEGIN
  IF p_async THEN
    v_grace := @S.grace(p_ns);
    IF v_grace > v_now THEN
      UPDATE @S.slots SET closed = greatest(closed, v_grace)
        WHERE ns = p_ns AND name = ANY (p_names) AND closed < v_grace;
    END IF;
  END IF;
  RETURN v_now;
END $$;

-- The last step of every verb: deletes the rows of idle slots, and sends the signals that add_signal has
-- collected. Where commits wait for the disk, they are returned instead and the client sends them after
-- the commit: PostgreSQL serializes commits that notify, so each would wait for the disk of all others.
CREATE FUNCTION @S.end_step(p_ns int, p_names text[], p_now bigint, p_async bool)
RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_signals text := current_setting('tenure.signals', true);
  v_line text;
  a @S.answer;
BEGIN
  DELETE FROM @S.slots WHERE ns = p_ns AND name = ANY (p_names)
    AND holders = 0 AND waiting = 0 AND closed <= p_now;
  IF coalesce(v_signals, '') = '' THEN RETURN; END IF;
  PERFORM set_config('tenure.signals', '', true);
  FOREACH v_line IN ARRAY string_to_array(rtrim(v_signals, E'\n'), E'\n') LOOP
    IF p_async THEN
      PERFORM pg_notify('tenure:' || left(v_line, 36), substr(v_line, 38));
    ELSE
      a.kind := 't';
      a.name := left(v_line, 36);
      a.texts := ARRAY[substr(v_line, 38)];
      RETURN NEXT a;
    END IF;
  END LOOP;
END $$;

-- Describes a holder or a waiter, for replies: 13 texts.
CREATE FUNCTION @S.view_of(c @S.claims, p_now bigint) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY[c.id::text, c.session::text, array_to_string(c.lineage, ' '), c.weight::text,
    c.fence::text, CASE WHEN c.held THEN c.reserved ELSE c.ahead END::text,
    greatest(p_now - c.since, 0)::text, greatest(c.expires - p_now, 0)::text,
    c.host, c.pid::text, c.place, c.label, c.conduct::text]
$$;

-- Returns the time until the first holder expires, plus its lock delay where that applies to the ticket;
-- NULL if only other tickets are in its way.
CREATE FUNCTION @S.first_expiry(s @S.slots, t @S.claims, p_now bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_delayed bool := NOT (t.ahead AND @S.owner_weight(s, t.owner) > 0);
  v_first bigint;
BEGIN
  IF s.holders > 64 THEN
    -- No holder expires before this. Reading all of them would cost more than one needless renewal.
    v_first := s.calm;
  ELSIF s.holders > 0 THEN
    SELECT min(c.expires + CASE WHEN v_delayed AND NOT c.reserved THEN c.delay ELSE 0 END)
      INTO v_first FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name AND c.held;
  END IF;
  IF v_delayed AND s.closed > p_now THEN v_first := least(v_first, s.closed); END IF;
  RETURN greatest(v_first - p_now, CASE WHEN v_first IS NULL THEN NULL ELSE 0 END);
END $$;

-- Returns the place of a ticket in the queue, counted from 1. Exact up to 128; beyond that an estimate,
-- which assumes that no ticket behind this one has left.
CREATE FUNCTION @S.place_of(s @S.slots, t @S.claims) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_before bigint;
BEGIN
  SELECT count(*) INTO v_before FROM (
    SELECT FROM @S.claims c WHERE c.ns = s.ns AND c.name = s.name AND NOT c.held
      AND c.ahead = t.ahead AND c.arrival < t.arrival ORDER BY c.arrival LIMIT 128) b;
  IF NOT t.ahead THEN v_before := v_before + s.ahead; END IF;
  IF v_before < 128 THEN RETURN v_before + 1; END IF;
  RETURN greatest(129, s.waiting - (s.joined - t.joined));
END $$;

-- Builds the reply for a claim that waits for at least one part (q) or holds all parts (g); no kind if
-- neither.
CREATE FUNCTION @S.standing(p_ns int, p_id uuid, p_names text[], p_item int, p_now bigint)
RETURNS @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
  c @S.claims;
  s @S.slots;
  v_held int := 0;
BEGIN
  a.item := p_item;
  FOR c IN SELECT * FROM @S.claims x WHERE x.ns = p_ns AND x.name = ANY (p_names) AND x.id = p_id
      ORDER BY x.name LOOP
    a.arrival := coalesce(a.arrival, c.arrival);
    IF c.held THEN
      v_held := v_held + 1;
      a.fences := a.fences || c.fence;
    ELSE
      SELECT * INTO s FROM @S.slots x WHERE x.ns = p_ns AND x.name = c.name;
      a.kind := 'q';
      a.place := greatest(a.place, @S.place_of(s, c));
      a.first := least(a.first, @S.first_expiry(s, c, p_now));
    END IF;
  END LOOP;
  IF a.kind IS NULL AND v_held = cardinality(p_names) THEN a.kind := 'g'; END IF;
  RETURN a;
END $$;

-- Builds the refusal of a claim that cannot be admitted now, whether its parts are free or not; no kind
-- if it can.
CREATE FUNCTION @S.refusal(c @S.claims, p_names text[], p_shapes int[], p_weights int[],
  p_free bool[], p_waits bool) RETURNS @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
  s @S.slots;
  t @S.claims;
  v_replaces bool := c.replaces IS NULL;
BEGIN
  FOR i IN 1 .. cardinality(p_names) LOOP
    SELECT * INTO s FROM @S.slots x WHERE x.ns = c.ns AND x.name = p_names[i];
    CONTINUE WHEN s.holders = 0 AND s.waiting = 0;
    a.name := s.name;
    IF s.shape <> p_shapes[i] THEN
      a.kind := 's';
      a.shape := s.shape;
      RETURN a;
    END IF;
    IF (p_free[i] AND s.holders >= 10000) OR (NOT p_free[i] AND p_waits AND s.waiting >= 10000) THEN
      a.kind := 'f';
      a.place := 10000;
      RETURN a;
    END IF;
    v_replaces := v_replaces OR EXISTS (SELECT FROM @S.claims h WHERE h.ns = c.ns
      AND h.name = s.name AND h.id = c.replaces AND h.held IS NOT DISTINCT FROM true
      AND h.owner = c.owner);
    IF p_waits THEN
      SELECT * INTO t FROM @S.rival_upgrade(s, c.lineage, p_weights[i]);
      IF FOUND THEN
        a.kind := 'u';
        a.texts := ARRAY[t.host, t.pid::text, t.place, t.label, t.conduct::text];
        RETURN a;
      END IF;
    END IF;
  END LOOP;
  IF NOT v_replaces THEN a.kind := 'n'; END IF;
  RETURN a;
END $$;

-- Builds the reply for a refused try-claim: up to 8 holders, and the number of waiters.
CREATE FUNCTION @S.held_by(p_ns int, p_names text[], p_now bigint) RETURNS @S.answer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
  h @S.claims;
BEGIN
  a.kind := 'h';
  a.texts := '{}';
  SELECT coalesce(sum(s.waiting), 0) INTO a.place FROM @S.slots s
    WHERE s.ns = p_ns AND s.name = ANY (p_names);
  FOR h IN SELECT * FROM @S.claims c WHERE c.ns = p_ns AND c.name = ANY (p_names) AND c.held
      ORDER BY c.name, c.number LIMIT 8 LOOP
    a.texts := a.texts || @S.view_of(h, p_now);
  END LOOP;
  RETURN a;
END $$;

-- Processes one claim. Its slots are locked and have rows.
CREATE FUNCTION @S.claim_step(c @S.claims, p_names text[], p_shapes int[], p_weights int[],
  p_waits bool, p_item int, p_now bigint) RETURNS @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
  s @S.slots;
  v_name text;
  v_free bool[] := '{}';
  v_waiting bool := false;
BEGIN
  FOREACH v_name IN ARRAY p_names LOOP PERFORM @S.touch(c.ns, v_name, p_now); END LOOP;
  IF EXISTS (SELECT FROM @S.tombs t WHERE t.ns = c.ns AND t.id = c.id AND t.until > p_now) THEN
    a.kind := 'w';
    a.item := p_item;
    RETURN a;
  END IF;
  IF EXISTS (SELECT FROM @S.claims x WHERE x.ns = c.ns AND x.name = ANY (p_names) AND x.id = c.id)
  THEN
    a := @S.renew_step(c.ns, c.id, p_names, c.lease, p_item, p_now);
    -- A part of it had ended, so the rest was removed, and this copy is a new arrival.
    IF a.kind <> 'x' THEN RETURN a; END IF;
  END IF;
  FOR i IN 1 .. cardinality(p_names) LOOP
    SELECT * INTO s FROM @S.slots x WHERE x.ns = c.ns AND x.name = p_names[i];
    v_free := v_free || CASE WHEN s.holders = 0 AND s.waiting = 0 THEN s.closed <= p_now
      ELSE @S.admits(s, c.lineage, p_weights[i], p_now) END;
  END LOOP;
  a := @S.refusal(c, p_names, p_shapes, p_weights, v_free, p_waits);
  IF a.kind IS NULL AND false = ANY (v_free) AND NOT p_waits THEN
    a := @S.held_by(c.ns, p_names, p_now);
  END IF;
  a.item := p_item;
  IF a.kind IS NOT NULL THEN RETURN a; END IF;
  c.arrival := @S.mint();
  c.since := p_now;
  c.expires := p_now + c.lease;
  FOR i IN 1 .. cardinality(p_names) LOOP
    SELECT * INTO s FROM @S.slots x WHERE x.ns = c.ns AND x.name = p_names[i];
    IF s.holders = 0 AND s.waiting = 0 THEN
      UPDATE @S.slots SET shape = p_shapes[i], joined = 0 WHERE ns = c.ns AND name = p_names[i]
        RETURNING * INTO s;
    END IF;
    c.weight := p_weights[i];
    IF v_free[i] THEN
      s := @S.grant_part(s, c, false, p_now);
    ELSE
      s := @S.enqueue(s, c);
    END IF;
    v_waiting := v_waiting OR s.waiting > 0;
  END LOOP;
  c.name := p_names[1];
  IF (c.parts IS NOT NULL AND false = ANY (v_free))
    OR (c.replaces IS NOT NULL AND true = ALL (v_free)) THEN
    PERFORM @S.settle(c, p_now, false);
  END IF;
  IF v_waiting THEN
    -- A new holder moves the tickets of its owner and descendants ahead, where they may be admitted.
    FOREACH v_name IN ARRAY p_names LOOP PERFORM @S.touch(c.ns, v_name, p_now); END LOOP;
  END IF;
  a := @S.standing(c.ns, c.id, p_names, p_item, p_now);
  IF a.kind IS NULL THEN a.kind := 'w'; END IF;
  RETURN a;
END $$;

-- A batch of claims. p_names has the names of all claims in turn, p_counts how many each has.
CREATE FUNCTION @S.claim(p_ns int, p_async bool, p_ids uuid[], p_counts int[], p_names text[],
  p_shapes int[], p_weights int[], p_leases bigint[], p_delays bigint[], p_waits bool[],
  p_replaces uuid[], p_sessions uuid[], p_lineages text[], p_hosts text[], p_pids bigint[],
  p_places text[], p_labels text[], p_conducts int[]) RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c @S.claims;
  v_names text[] := p_names;
  v_now bigint;
  v_from int := 1;
  v_to int;
BEGIN
  IF array_remove(p_replaces, NULL) <> '{}' THEN
    -- The replaced claim may have parts in other slots. They do not change before the locks are taken:
    -- the owner of that claim is the caller.
    v_names := v_names || ARRAY(SELECT unnest(h.parts) FROM @S.claims h WHERE h.ns = p_ns
      AND h.name = ANY (p_names) AND h.id = ANY (p_replaces)
      AND h.held IS NOT DISTINCT FROM true);
  END IF;
  v_names := @S.lock_slots(p_ns, v_names, true);
  v_now := @S.begin_step(p_ns, v_names, p_async);
  c.ns := p_ns;
  c.held := false;
  c.ahead := false;
  c.reserved := false;
  c.fence := 0;
  c.number := 0;
  c.joined := 0;
  FOR i IN 1 .. cardinality(p_ids) LOOP
    v_to := v_from + p_counts[i] - 1;
    c.id := p_ids[i];
    c.lineage := p_lineages[i]::uuid[];
    c.owner := c.lineage[1];
    c.session := p_sessions[i];
    c.lease := p_leases[i];
    c.delay := p_delays[i];
    c.replaces := p_replaces[i];
    c.parts := CASE WHEN p_counts[i] > 1 THEN p_names[v_from:v_to] END;
    c.host := p_hosts[i];
    c.pid := p_pids[i];
    c.place := p_places[i];
    c.label := p_labels[i];
    c.conduct := p_conducts[i];
    RETURN NEXT @S.claim_step(c, p_names[v_from:v_to], p_shapes[v_from:v_to],
      p_weights[v_from:v_to], p_waits[i], i, v_now);
    v_from := v_to + 1;
  END LOOP;
  RETURN QUERY SELECT * FROM @S.end_step(p_ns, v_names, v_now, p_async);
END $$;

-- One claim on one name. Short path (see the head) or claim.
CREATE FUNCTION @S.claim_one(p_ns int, p_async bool, p_id uuid, p_name text, p_shape int,
  p_weight int, p_lease bigint, p_delay bigint, p_waits bool, p_replaces uuid, p_session uuid,
  p_lineage uuid[], p_host text, p_pid bigint, p_place text, p_label text, p_conduct int)
RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
  v_now bigint;
BEGIN
  IF p_replaces IS NULL THEN
    INSERT INTO @S.slots (ns, name, shape, holders, weight, lone, calm)
      SELECT p_ns, p_name, p_shape, 1, p_weight, p_id, @S.clock() + p_lease
      -- During a grace, or if it is not known whether there is one: the long path.
      WHERE NOT p_async
        OR EXISTS (SELECT FROM @S.alive x WHERE x.ns = p_ns AND x.grace <= @S.clock())
      ON CONFLICT (ns, name) DO NOTHING;
    IF FOUND THEN
      v_now := @S.clock();
      -- What mint does, inlined for the usual case that the sequence is ahead of the clock.
      a.arrival := nextval('@S.numbers');
      IF a.arrival < v_now THEN a.arrival := @S.mint(); END IF;
      -- A statement of its own: it sees a tombstone committed while the insert above waited.
      INSERT INTO @S.claims (ns, name, id, held, weight, owner, lineage, session, fence, arrival,
          number, since, expires, lease, delay, host, pid, place, label, conduct)
        SELECT p_ns, p_name, p_id, true, p_weight, p_lineage[1], p_lineage, p_session, a.arrival,
          a.arrival, a.arrival, v_now, v_now + p_lease, p_lease, p_delay, p_host, p_pid, p_place,
          p_label, p_conduct
        WHERE NOT EXISTS (SELECT FROM @S.tombs t
          WHERE t.ns = p_ns AND t.id = p_id AND t.until > v_now);
      a.item := 1;
      IF FOUND THEN
        --#path postgres claim: one free slot
        a.kind := 'g';
        a.fences := ARRAY[a.arrival];
      ELSE
        --#path postgres claim: one free slot, withdrawn before
        a.kind := 'w';
        DELETE FROM @S.slots WHERE ns = p_ns AND name = p_name;
      END IF;
      RETURN NEXT a;
      RETURN;
    END IF;
  END IF;
  --#path postgres claim: one slot, by the rules
  RETURN QUERY SELECT * FROM @S.claim(p_ns, p_async, ARRAY[p_id], ARRAY[1], ARRAY[p_name],
    ARRAY[p_shape], ARRAY[p_weight], ARRAY[p_lease], ARRAY[p_delay], ARRAY[p_waits],
    ARRAY[p_replaces], ARRAY[p_session], ARRAY[p_lineage::text], ARRAY[p_host], ARRAY[p_pid],
    ARRAY[p_place], ARRAY[p_label], ARRAY[p_conduct]);
END $$;

-- Sends signals to sessions of other processes. A transaction of its own, whose commit does not wait for
-- the disk.
CREATE FUNCTION @S.notify(p_sessions text[], p_texts text[]) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM pg_notify('tenure:' || u.session, u.text) FROM unnest(p_sessions, p_texts) u (session, text);
END $$;
