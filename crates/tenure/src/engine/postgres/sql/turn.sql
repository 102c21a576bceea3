-- turn: one turn of a worker. Ends attempts, gives back jobs of workers that do not live, promotes what is due,
-- and claims. The rule is `turn` in ledger/jobs/rules.rs. Reply rows, by kind:
--
-- d a x c s  what became of report `item`: done, again after `wait`, dead, cancelled, stale
-- k          an attempt of the worker whose job was cancelled: id, fence
-- j          a job that was claimed: id, fence, number, most, crashes, payload, progress, class, place,
--            key
-- l          stale, or not: the job of report `item` is locked by a transaction that completes it (complete_job)
-- e          the end: wait = until the next job is due, if any; number 1 = paused; most 1 = the session sleeps
--            since this turn; crashes = jobs to be given back that were locked; place = the cost of a claim
--            from the start in microseconds, if there was one
CREATE TYPE @S.job_reply AS (
  kind text,
  item int,
  id bigint,
  fence bigint,
  number int,
  most int,
  crashes int,
  payload bytea,
  progress bytea,
  class int,
  place bigint,
  wait bigint,
  key text
);

-- Reports are parallel arrays: p_outcomes has c (complete), f (fail), g (give back), l (later), p (progress).
-- p_held has the fences of all attempts that the worker knows of, NULL if nothing is to be given back. p_places
-- and p_after are, for each class, the last key that was claimed: see claim_jobs. p_start allows to begin at the
-- start if a claim comes up short. p_sleeps: the session is notified if it gets less than it wants; p_asleep:
-- it may be among the sleepers already. p_durable: the commit waits for the disk where others do not.
CREATE FUNCTION @S.turn(p_ns int, p_name text, p_slot text, p_async bool, p_worker uuid,
  p_session uuid, p_ids bigint[], p_fences bigint[], p_outcomes text[], p_errors text[],
  p_for_good bool[], p_pauses bigint[], p_jitters int[], p_progress bytea[], p_held bigint[],
  p_want int, p_look bool, p_places bigint[], p_after bigint[], p_start bool, p_sleeps bool,
  p_asleep bool, p_durable bool) RETURNS SETOF @S.job_reply LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  q @S.queues := @S.queue_of(p_ns, p_name);
  v_now bigint := @S.clock();
  v_lost uuid[] := '{}';
  v_lanes text[] := '{}';
  v_due bigint;
  v_ready int := 0;
  v_claimed int := 0;
  v_changed bool := false;
  v_want int := CASE WHEN q.paused THEN 0 ELSE p_want END;
  r @S.job_reply;
  e @S.job_reply;
BEGIN
  IF p_durable AND current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  IF @S.begins_look(q.queue, p_look, v_now) AND NOT (p_async AND @S.grace(p_ns) > v_now) THEN
    v_lost := @S.lost_workers(q.queue, p_ns, p_slot);
    v_now := @S.clock();
    PERFORM @S.sweep_ended(q, v_now, 64);
  END IF;
  SELECT j.due INTO v_due FROM @S.jobs j WHERE j.queue = q.queue AND j.state = 's'
    ORDER BY j.due, j.id LIMIT 1;
  IF q.lanes THEN
    v_lanes := @S.lanes_concerned(q.queue, p_ids, v_lost, v_due <= v_now, v_now);
    PERFORM @S.lock_names(q.queue, v_lanes);
    v_now := greatest(v_now, @S.clock());
  END IF;
  IF cardinality(p_ids) > 0 THEN
    FOR r IN SELECT * FROM @S.settle_reports(q, v_now, p_ids, p_fences, p_outcomes, p_errors,
        p_for_good, p_pauses, p_jitters, p_progress) LOOP
      v_ready := v_ready + r.number;
      v_changed := v_changed OR r.kind = 'a';
      RETURN NEXT r;
    END LOOP;
  END IF;
  IF p_held IS NOT NULL THEN
    SELECT v_ready + g.ready, g.locked INTO v_ready, e.crashes
      FROM @S.give_back_unknown(q.queue, p_worker, p_held) g;
  END IF;
  IF v_lost <> '{}' THEN v_ready := v_ready + @S.rescue(q.queue, v_lost, v_lanes, v_now); END IF;
  IF v_due <= v_now THEN
    v_ready := v_ready + @S.promote(q, v_lanes, v_now);
    v_changed := true;
  END IF;
  IF v_changed THEN
    SELECT j.due INTO v_due FROM @S.jobs j WHERE j.queue = q.queue AND j.state = 's'
      ORDER BY j.due, j.id LIMIT 1;
  END IF;
  IF v_want > 0 THEN
    PERFORM @S.mint();
    -- What has become ready in this turn may stand before the last key that was claimed.
    IF v_ready = 0 AND NOT p_look AND p_places IS NOT NULL THEN
      FOR r IN SELECT * FROM @S.claim_jobs(q.queue, p_worker, v_want, p_places, p_after) LOOP
        v_claimed := v_claimed + 1;
        RETURN NEXT r;
      END LOOP;
    END IF;
    IF v_claimed < v_want AND (p_start OR v_ready > 0 OR p_look OR p_places IS NULL) THEN
      e.place := @S.clock();
      FOR r IN SELECT * FROM @S.claim_jobs(q.queue, p_worker, v_want - v_claimed,
          array_fill(-9223372036854775808, ARRAY[10]), array_fill(0::bigint, ARRAY[10])) LOOP
        v_claimed := v_claimed + 1;
        RETURN NEXT r;
      END LOOP;
      e.place := @S.clock() - e.place;
    END IF;
  END IF;
  FOR r.id, r.fence IN SELECT j.id, j.fence FROM @S.jobs j WHERE j.queue = q.queue AND j.state = 'w'
      AND j.cancelled AND j.worker = p_worker ORDER BY j.id LIMIT 256 LOOP
    RETURN NEXT ROW('k', NULL, r.id, r.fence, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
      NULL)::@S.job_reply;
  END LOOP;
  e.kind := 'e';
  e.wait := CASE WHEN v_due IS NOT NULL THEN greatest(0, v_due - v_now) END;
  e.number := q.paused::int;
  e.most := 0;
  -- Last, because a row of a sleeper may be locked by a push that ends.
  IF v_claimed < p_want THEN
    IF p_sleeps THEN
      INSERT INTO @S.sleepers (queue, session) VALUES (q.queue, p_session) ON CONFLICT DO NOTHING;
      e.most := FOUND::int;
    END IF;
  ELSE
    IF p_asleep THEN
      DELETE FROM @S.sleepers s WHERE s.queue = q.queue AND s.session = p_session;
    END IF;
    IF NOT q.paused THEN PERFORM @S.wake_sleepers(q.queue, v_ready - v_claimed); END IF;
  END IF;
  RETURN NEXT e;
END $$;

-- Returns whether this turn looks for lost workers: if it is asked to, or no turn has for a second. Each look is
-- noted: a worker that falls asleep takes a second turn at once, which must not give back what the first claimed.
CREATE FUNCTION @S.begins_look(p_queue int, p_look bool, p_now bigint) RETURNS bool
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF NOT p_look THEN
    PERFORM FROM @S.queue_looks l WHERE l.queue = p_queue AND abs(p_now - l.looked) < 1000000;
    IF FOUND THEN RETURN false; END IF;
  END IF;
  PERFORM FROM @S.queue_looks l WHERE l.queue = p_queue FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE @S.queue_looks SET looked = p_now WHERE queue = p_queue;
    RETURN true;
  END IF;
  INSERT INTO @S.queue_looks (queue, looked) VALUES (p_queue, p_now) ON CONFLICT DO NOTHING;
  RETURN p_look OR FOUND;
END $$;

-- Locks the slot of the workers, and returns those that have jobs and whose claims do not live. A claim that is
-- missing does not live. Sessions without a worker sleep no more.
CREATE FUNCTION @S.lost_workers(p_queue int, p_ns int, p_slot text) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_locked bool := (SELECT true FROM @S.slots s WHERE s.ns = p_ns AND s.name = p_slot FOR UPDATE);
  v_now bigint := @S.clock();
  v_worker uuid := '00000000-0000-0000-0000-000000000000';
  v_lost uuid[] := '{}';
BEGIN
  LOOP
    SELECT j.worker INTO v_worker FROM @S.jobs j WHERE j.queue = p_queue AND j.state = 'w'
      AND j.worker > v_worker ORDER BY j.worker LIMIT 1;
    EXIT WHEN NOT FOUND;
    PERFORM FROM @S.claims c WHERE c.id = v_worker AND c.ns = p_ns AND c.name = p_slot
      AND c.held IS NOT DISTINCT FROM true AND c.expires > v_now;
    IF NOT FOUND THEN v_lost := v_lost || v_worker; END IF;
  END LOOP;
  DELETE FROM @S.sleepers s WHERE s.queue = p_queue AND s.session = ANY (ARRAY(
    SELECT x.session FROM @S.sleepers x WHERE x.queue = p_queue AND NOT EXISTS (
      SELECT FROM @S.claims c WHERE c.ns = p_ns AND c.name = p_slot AND c.held
        AND c.session = x.session AND c.expires > v_now)
    FOR UPDATE SKIP LOCKED));
  RETURN v_lost;
END $$;

-- Returns the lanes that a turn may have to count.
CREATE FUNCTION @S.lanes_concerned(p_queue int, p_ids bigint[], p_lost uuid[], p_due bool, p_now bigint)
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_lanes text[] := '{}';
BEGIN
  IF cardinality(p_ids) > 0 THEN
    v_lanes := ARRAY(SELECT DISTINCT j.lane FROM unnest(p_ids) u
      JOIN @S.jobs j ON j.queue = p_queue AND j.id = u WHERE j.lane IS NOT NULL);
  END IF;
  IF p_lost <> '{}' THEN
    v_lanes := v_lanes || ARRAY(SELECT DISTINCT j.lane FROM @S.jobs j WHERE j.queue = p_queue
      AND j.state = 'w' AND j.worker = ANY (p_lost) AND j.lane IS NOT NULL);
  END IF;
  IF p_due THEN
    v_lanes := v_lanes || ARRAY(SELECT DISTINCT d.lane FROM (SELECT j.lane FROM @S.jobs j
      WHERE j.queue = p_queue AND j.state = 's' AND j.due <= p_now ORDER BY j.due, j.id LIMIT 1000) d
      WHERE d.lane IS NOT NULL);
  END IF;
  RETURN v_lanes;
END $$;

-- Carries out the reports of a worker. `number` of a reply is how many jobs became ready. Jobs that are complete
-- and have no lane are removed by one statement; the others one by one.
CREATE FUNCTION @S.settle_reports(q @S.queues, p_now bigint, p_ids bigint[], p_fences bigint[],
  p_outcomes text[], p_errors text[], p_for_good bool[], p_pauses bigint[], p_jitters int[],
  p_progress bytea[]) RETURNS SETOF @S.job_reply LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  r @S.job_reply;
  v_ids bigint[];
  v_done int[] := '{}';
  v_big bigint[] := '{}';
  v_noted bigint[] := '{}';
  j @S.jobs;
BEGIN
  r.number := 0;
  IF q.keep_done = 0 AND 'c' = ANY (p_outcomes) THEN
    -- Several reports of one attempt count in their order: progress, then completion.
    v_ids := ARRAY(SELECT u.id FROM unnest(p_ids, p_outcomes) u (id, outcome)
      GROUP BY u.id HAVING count(*) = 1 AND min(u.outcome) = 'c');
    -- No join: begun at the running jobs it would read all reports again for each of them.
    WITH gone AS (DELETE FROM @S.jobs x
        WHERE x.queue = q.queue AND x.id = ANY (v_ids) AND x.state = 'w' AND x.lane IS NULL
          AND x.fence = p_fences[array_position(p_ids, x.id)]
        RETURNING array_position(p_ids, x.id) AS nth, x.id, x.load IS NULL AS big)
      SELECT coalesce(array_agg(g.nth), '{}'), coalesce(array_agg(g.id) FILTER (WHERE g.big), '{}'),
        array_agg(g.id) INTO v_done, v_big, v_noted FROM gone g;
    IF v_big <> '{}' THEN DELETE FROM @S.loads l WHERE l.id = ANY (v_big); END IF;
    DELETE FROM @S.job_notes n WHERE n.id = ANY (v_noted);
  END IF;
  FOR i IN 1 .. cardinality(p_ids) LOOP
    r.item := i;
    r.kind := 'd';
    r.wait := NULL;
    r.number := 0;
    IF NOT i = ANY (v_done) THEN
      -- Only a job that is given back may be locked for long: by a transaction that completes it, perhaps.
      IF p_outcomes[i] = 'g' THEN
        SELECT * INTO j FROM @S.jobs x WHERE x.queue = q.queue AND x.id = p_ids[i]
          AND x.state = 'w' AND x.fence = p_fences[i] FOR UPDATE SKIP LOCKED;
      ELSE
        SELECT * INTO j FROM @S.jobs x WHERE x.queue = q.queue AND x.id = p_ids[i]
          AND x.state = 'w' AND x.fence = p_fences[i] FOR UPDATE;
      END IF;
      IF j.id IS NULL THEN
        PERFORM FROM @S.jobs x WHERE x.queue = q.queue AND x.id = p_ids[i] AND x.state = 'w'
          AND x.fence = p_fences[i];
        r.kind := CASE WHEN FOUND THEN 'l' ELSE 's' END;
      ELSIF p_outcomes[i] = 'p' THEN
        INSERT INTO @S.job_notes (id, progress) VALUES (j.id, p_progress[i])
          ON CONFLICT (id) DO UPDATE SET progress = EXCLUDED.progress;
      ELSIF p_outcomes[i] = 'c' THEN
        r.number := @S.complete_one(q, j, p_now);
      ELSIF j.cancelled THEN
        r.kind := 'c';
        r.number := @S.drop_job(j);
      ELSIF p_outcomes[i] = 'g' THEN
        j.attempts := j.attempts - 1;
        r.number := @S.resume_rank(j);
      ELSE
        SELECT s.kind, s.wait, s.ready INTO r.kind, r.wait, r.number FROM @S.settle_again(q, j, p_now,
          p_outcomes[i], p_errors[i], p_for_good[i], p_pauses[i], p_jitters[i]) s;
      END IF;
    END IF;
    RETURN NEXT r;
  END LOOP;
END $$;

-- Ends an attempt that has completed. Returns how many jobs became ready.
CREATE FUNCTION @S.complete_one(q @S.queues, j @S.jobs, p_now bigint) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF q.keep_done = 0 THEN RETURN @S.drop_job(j); END IF;
  PERFORM @S.keep_ended(j, 'f', p_now);
  IF j.lane IS NULL THEN RETURN 0; END IF;
  RETURN @S.fill_lane(j.queue, j.lane, j.lane_limit);
END $$;

-- Makes a running job ready at its old place; it keeps its place in the lane.
CREATE FUNCTION @S.resume_rank(j @S.jobs) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  b @S.jobs := j;
BEGIN
  j := @S.take_key(j);
  j.state := 'r';
  j.worker := NULL;
  RETURN @S.write_job(b, j);
END $$;

-- Ends an attempt that failed, or that is to be made once more later. An attempt that failed is dead if it was
-- the last one. The pause is `first` doubled with each attempt, `most` at most, of which a part is taken.
CREATE FUNCTION @S.settle_again(q @S.queues, j @S.jobs, p_now bigint, p_outcome text, p_error text,
  p_for_good bool, p_pause bigint, p_jitter int, OUT kind text, OUT wait bigint, OUT ready int)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  b @S.jobs := j;
BEGIN
  IF p_outcome = 'f' AND (p_for_good OR j.attempts >= j.max_attempts) THEN
    kind := 'x';
    ready := @S.bury_job(j, p_now, p_error);
    RETURN;
  END IF;
  kind := 'a';
  wait := p_pause;
  IF p_outcome = 'l' THEN
    j.attempts := j.attempts - 1;
  ELSE
    PERFORM @S.note_error(j.id, j.attempts + j.crashes, p_now, p_error);
    IF wait IS NULL THEN
      wait := div(least(coalesce(j.first_pause, 1000000) * 2::numeric ^ least(greatest(j.attempts - 1, 0), 62),
        coalesce(j.most_pause, 3600000000)) * p_jitter, 65535);
    END IF;
  END IF;
  j.due := p_now + wait;
  j := @S.take_key(j);
  j := @S.entered(j, p_now, q.aging);
  ready := @S.write_job(b, j);
END $$;

-- Gives back jobs that a worker has claimed without knowing it: the reply was lost. Returns how many, and how
-- many could not be given back because they are locked.
CREATE FUNCTION @S.give_back_unknown(p_queue int, p_worker uuid, p_held bigint[], OUT ready int, OUT locked int)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  j @S.jobs;
BEGIN
  ready := 0;
  FOR j IN SELECT * FROM @S.jobs x WHERE x.queue = p_queue AND x.state = 'w' AND x.worker = p_worker
      AND NOT x.fence = ANY (p_held) ORDER BY x.id FOR UPDATE SKIP LOCKED LOOP
    j.attempts := j.attempts - 1;
    ready := ready + @S.resume_rank(j);
  END LOOP;
  locked := (SELECT count(*) FROM @S.jobs x WHERE x.queue = p_queue AND x.state = 'w' AND x.worker = p_worker
    AND NOT x.fence = ANY (p_held));
END $$;

-- Gives back the jobs of lost workers (J4): exactly the rows that it locks, which are re-read under the lock. A
-- job that is cancelled is gone; one whose worker was lost three times is dead. Returns how many became ready.
CREATE FUNCTION @S.rescue(p_queue int, p_lost uuid[], p_lanes text[], p_now bigint) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ready int := 0;
  v_worker uuid;
  j @S.jobs;
BEGIN
  FOREACH v_worker IN ARRAY p_lost LOOP
    FOR j IN SELECT * FROM @S.jobs x WHERE x.queue = p_queue AND x.state = 'w' AND x.worker = v_worker
        AND (x.lane IS NULL OR x.lane = ANY (p_lanes)) ORDER BY x.id LIMIT 1000 FOR UPDATE SKIP LOCKED LOOP
      IF j.cancelled THEN
        v_ready := v_ready + @S.drop_job(j);
        CONTINUE;
      END IF;
      j.attempts := j.attempts - 1;
      j.crashes := j.crashes + 1;
      IF j.crashes >= 3 THEN
        v_ready := v_ready + @S.bury_job(j, p_now, 'its worker died or was lost each time');
      ELSE
        v_ready := v_ready + @S.resume_rank(j);
      END IF;
    END LOOP;
  END LOOP;
  RETURN v_ready;
END $$;

-- Moves what is due out of the schedule, in the order of due times, a thousand jobs at most. Returns how many
-- became ready. A job of a lane that is not locked waits for the next turn.
CREATE FUNCTION @S.promote(q @S.queues, p_lanes text[], p_now bigint) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ready int := 0;
  b @S.jobs;
BEGIN
  IF NOT q.lanes THEN
    WITH due AS MATERIALIZED (SELECT j.id FROM @S.jobs j WHERE j.queue = q.queue AND j.state = 's'
        AND j.due <= p_now ORDER BY j.due, j.id LIMIT 1000 FOR UPDATE SKIP LOCKED)
    UPDATE @S.jobs j SET state = 'r', class = @S.rank_class(j.priority, q.aging),
        place = @S.rank_place(j.priority, j.due, q.aging)
      FROM due d WHERE j.queue = q.queue AND j.id = d.id;
    GET DIAGNOSTICS v_ready = ROW_COUNT;
    RETURN v_ready;
  END IF;
  FOR b IN SELECT * FROM @S.jobs j WHERE j.queue = q.queue AND j.state = 's' AND j.due <= p_now
      AND (j.lane IS NULL OR j.lane = ANY (p_lanes))
      ORDER BY j.due, j.id LIMIT 1000 FOR UPDATE SKIP LOCKED LOOP
    v_ready := v_ready + @S.write_job(b, @S.entered(b, p_now, q.aging));
  END LOOP;
  RETURN v_ready;
END $$;

-- Claims ready jobs in their order, from the given keys on: for class n, (p_places[n + 1], p_after[n + 1]). A key
-- is where the client's last claim ended, so that no claim passes the rows that those before it have left behind
-- and that vacuum may not remove while an old snapshot lives. Without MATERIALIZED the planner may run the LIMIT
-- again for each row that it updates. Each claim draws a fence above all before it; fences grow in the order of
-- the queue. A key that lasts until the start is free from here on.
CREATE FUNCTION @S.claim_jobs(p_queue int, p_worker uuid, p_want int, p_places bigint[],
  p_after bigint[]) RETURNS SETOF @S.job_reply LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN QUERY WITH c AS MATERIALIZED (
      SELECT f.id FROM unnest(p_places, p_after) WITH ORDINALITY h (place, id, nth)
      CROSS JOIN LATERAL (SELECT j.id FROM @S.jobs j WHERE j.queue = p_queue AND j.state = 'r'
          AND j.class = (h.nth - 1)::smallint AND (j.place, j.id) >= (h.place, h.id)
        ORDER BY j.place, j.id LIMIT p_want FOR UPDATE SKIP LOCKED) f
      LIMIT p_want),
    n AS MATERIALIZED (SELECT c.id, nextval('@S.numbers') AS fence FROM c),
    u AS MATERIALIZED (UPDATE @S.jobs j SET state = 'w', attempts = j.attempts + 1, worker = p_worker,
        fence = n.fence, keyed = j.keyed AND j.mode = 1
      FROM n WHERE j.queue = p_queue AND j.id = n.id RETURNING j.*)
    SELECT 'j', NULL::int, u.id, u.fence, (u.attempts + u.crashes)::int, u.max_attempts::int, u.crashes::int,
      coalesce(u.load, (SELECT l.payload FROM @S.loads l WHERE l.id = u.id)),
      (SELECT t.progress FROM @S.job_notes t WHERE t.id = u.id), u.class::int, u.place, NULL::bigint,
      u.key
    FROM u ORDER BY u.fence;
END $$;
