-- push_jobs: adds jobs to a queue, all or none. One reply row for each, in order, by kind:
--
-- n  new: id                e  a job with its key exists: id               r  replaced: id, instead_of
--
-- p_within says that this is a part of a caller's transaction, which may be long and of any isolation level:
-- then a job with a lane enters as scheduled and due, because a transaction that counts the places of a lane
-- must hold the lane's lock, and this one may be long; the next turn promotes it. Sleeping workers are woken
-- when the transaction ends (wake_at_end). A push of the engine's own wakes them by the statement behind it
-- (wake_later), which sees who sleeps after the commit: a worker that went to sleep while this transaction
-- was under way has not seen its jobs. A job that is due within a second counts as ready here: a sleeper
-- would look too late for it.
CREATE FUNCTION @S.push_jobs(p_ns int, p_name text, p_within bool, p_later bool, p_payloads bytea[],
  p_priorities int[], p_delays bigint[], p_dues bigint[], p_attempts int[], p_firsts bigint[],
  p_mosts bigint[], p_keys text[], p_modes int[], p_lanes text[], p_limits int[])
RETURNS TABLE (kind text, id bigint, instead_of bigint) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  q @S.queues := @S.queue_of(p_ns, p_name);
  v_now bigint := @S.clock();
  v_ready int;
BEGIN
  -- Where commits do not wait for the disk, a push does.
  IF NOT p_within AND current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  IF array_length(array_remove(p_keys, NULL) || array_remove(p_lanes, NULL), 1) > 0 THEN
    RETURN QUERY SELECT n.kind, n.id, n.instead_of FROM @S.push_named(q, p_within, p_payloads,
      p_priorities, p_delays, p_dues, p_attempts, p_firsts, p_mosts, p_keys, p_modes, p_lanes,
      p_limits) n;
    v_ready := nullif(current_setting('tenure.readied', true), '')::int;
  ELSE
    RETURN QUERY WITH n AS MATERIALIZED (
        SELECT nextval('@S.job_numbers') AS id, @S.due_of(v_now, u.delay, u.at) AS due, u.*
        FROM unnest(p_payloads, p_priorities, p_delays, p_dues, p_attempts, p_firsts, p_mosts)
          u (payload, priority, delay, at, attempts, first, most)),
      l AS (INSERT INTO @S.loads (id, payload) SELECT n.id, n.payload FROM n
        WHERE octet_length(n.payload) > 96),
      j AS (INSERT INTO @S.jobs (id, due, place, pushed, queue, max_attempts, class, priority, state,
          first_pause, most_pause, load)
        SELECT n.id, n.due, @S.rank_place(n.priority, n.due, q.aging), v_now, q.queue, n.attempts,
          @S.rank_class(n.priority, q.aging), n.priority,
          CASE WHEN n.due > v_now THEN 's' ELSE 'r' END::"char", n.first, n.most,
          CASE WHEN octet_length(n.payload) <= 96 THEN n.payload END
        FROM n)
      SELECT 'n', n.id, NULL::bigint FROM n;
    v_ready := (SELECT count(*) FROM unnest(p_delays, p_dues) u (delay, at)
      WHERE @S.due_of(v_now, u.delay, u.at) <= v_now + 1000000);
  END IF;
  IF v_ready = 0 THEN
    RETURN;
  ELSIF p_within THEN
    INSERT INTO @S.job_ends (queue, ready) VALUES (q.queue, v_ready);
  ELSIF p_later THEN
    PERFORM set_config('tenure.pushed', coalesce(current_setting('tenure.pushed', true), '')
      || q.queue || ' ' || v_ready || ' ', false);
  ELSIF NOT q.paused THEN
    PERFORM @S.wake_sleepers(q.queue, v_ready);
  END IF;
END $$;

-- Returns when a job is due: after a delay, or at a time, ten years from now at most.
CREATE FUNCTION @S.due_of(p_now bigint, p_delay bigint, p_at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce(p_now + p_delay, least(p_at, p_now + 316224000000000)) $$;

-- Pushes jobs of which some have keys or lanes, one after the other. Leaves how many jobs became ready in the
-- setting tenure.readied.
CREATE FUNCTION @S.push_named(q @S.queues, p_within bool, p_payloads bytea[], p_priorities int[],
  p_delays bigint[], p_dues bigint[], p_attempts int[], p_firsts bigint[], p_mosts bigint[],
  p_keys text[], p_modes int[], p_lanes text[], p_limits int[])
RETURNS TABLE (kind text, id bigint, instead_of bigint) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  v_now bigint;
  v_ready int := 0;
  v_others text[] := '{}';
  j @S.jobs;
  o @S.jobs;
BEGIN
  -- A job that is replaced leaves its lane. Read before the locks, and compared after them.
  IF 2 = ANY (p_modes) AND NOT p_within THEN
    v_others := ARRAY(SELECT DISTINCT x.lane FROM @S.jobs x WHERE x.queue = q.queue
      AND x.key = ANY (p_keys) AND x.keyed AND x.lane IS NOT NULL);
  END IF;
  v_others := v_others || CASE WHEN p_within THEN '{}' ELSE array_remove(p_lanes, NULL) END;
  PERFORM @S.lock_names(q.queue, p_keys || v_others);
  v_now := @S.clock();
  IF NOT q.lanes AND array_length(array_remove(p_lanes, NULL), 1) > 0 THEN
    UPDATE @S.queues SET lanes = true WHERE queue = q.queue AND NOT lanes;
  END IF;
  FOR i IN 1 .. cardinality(p_payloads) LOOP
    kind := 'n';
    instead_of := NULL;
    j := NULL;
    IF p_keys[i] IS NOT NULL THEN
      o := @S.key_holder(q.queue, p_keys[i]);
      IF o.state IN ('s', 'b', 'r') AND p_modes[i] = 2 THEN
        kind := 'r';
        instead_of := o.id;
        IF o.state = 'r' AND o.lane IS NOT NULL AND (p_within OR NOT o.lane = ANY (v_others)) THEN
          -- Its lane is not locked here: the place that it leaves is filled when the transaction ends.
          INSERT INTO @S.job_ends (queue, ready, lane, lane_limit)
            VALUES (q.queue, 0, o.lane, o.lane_limit);
          o.lane := NULL;
        END IF;
        v_ready := v_ready + @S.drop_job(o);
      ELSIF o.id IS NOT NULL THEN
        kind := 'e';
        id := o.id;
        -- A worker may have skipped it, because its row was locked here.
        v_ready := v_ready + (o.state = 'r')::int;
        RETURN NEXT;
        CONTINUE;
      END IF;
    END IF;
    j.id := nextval('@S.job_numbers');
    j.queue := q.queue;
    j.due := @S.due_of(v_now, p_delays[i], p_dues[i]);
    j.pushed := v_now;
    j.attempts := 0;
    j.crashes := 0;
    j.cancelled := false;
    j.max_attempts := p_attempts[i];
    j.priority := p_priorities[i];
    j.keyed := p_keys[i] IS NOT NULL;
    j.key := p_keys[i];
    j.mode := p_modes[i];
    j.lane := p_lanes[i];
    j.lane_limit := p_limits[i];
    j.first_pause := p_firsts[i];
    j.most_pause := p_mosts[i];
    IF octet_length(p_payloads[i]) <= 96 THEN
      j.load := p_payloads[i];
    ELSE
      INSERT INTO @S.loads (id, payload) VALUES (j.id, p_payloads[i]);
    END IF;
    IF j.lane IS NULL OR NOT p_within THEN
      IF j.lane IS NOT NULL THEN
        v_ready := v_ready + @S.state_limit(q.queue, j.lane, j.lane_limit);
      END IF;
      j := @S.entered(j, v_now, q.aging);
      v_ready := v_ready + (j.state = 'r' OR (j.state = 's' AND j.due <= v_now + 1000000))::int;
    ELSE
      j.class := @S.rank_class(j.priority, q.aging);
      j.place := @S.rank_place(j.priority, j.due, q.aging);
      j.state := 's';
      v_ready := v_ready + (j.due <= v_now + 1000000)::int;
    END IF;
    INSERT INTO @S.jobs SELECT (j).*;
    id := j.id;
    RETURN NEXT;
  END LOOP;
  PERFORM set_config('tenure.readied', v_ready::text, true);
END $$;

-- Returns the job that has a key. One that waits is locked until the transaction ends: a claim skips it, so that
-- it cannot begin before what its caller has written is there to be read.
CREATE FUNCTION @S.key_holder(p_queue int, p_key text) RETURNS @S.jobs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  o @S.jobs;
BEGIN
  SELECT * INTO o FROM @S.jobs x WHERE x.queue = p_queue AND x.key = p_key AND x.keyed;
  IF o.state <> 'w' THEN
    SELECT * INTO o FROM @S.jobs x WHERE x.queue = p_queue AND x.key = p_key AND x.keyed FOR UPDATE;
  END IF;
  RETURN o;
END $$;

-- Notes the limit of a lane that was stated last. A larger one lets blocked jobs in. Returns how many.
CREATE FUNCTION @S.state_limit(p_queue int, p_lane text, p_most int) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ready int := 0;
BEGIN
  UPDATE @S.lanes l SET most = p_most WHERE l.queue = p_queue AND l.lane = p_lane AND l.most <> p_most;
  IF FOUND THEN v_ready := @S.fill_lane(p_queue, p_lane, 0); END IF;
  INSERT INTO @S.lanes (queue, lane, most) VALUES (p_queue, p_lane, p_most) ON CONFLICT DO NOTHING;
  RETURN v_ready;
END $$;

-- Wakes sleeping workers for the pushes of this session that have committed. Written by the client directly
-- behind the push; a transaction of its own, whose commit does not wait for the disk.
CREATE FUNCTION @S.wake_later() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_words text[] := string_to_array(rtrim(coalesce(current_setting('tenure.pushed', true), '')), ' ');
BEGIN
  IF cardinality(v_words) < 2 THEN RETURN; END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM set_config('tenure.pushed', '', false);
  FOR i IN 1 .. cardinality(v_words) / 2 LOOP
    PERFORM @S.wake_sleepers(q.queue, v_words[2 * i]::int) FROM @S.queues q
      WHERE q.queue = v_words[2 * i - 1]::int AND NOT q.paused;
  END LOOP;
END $$;

-- The end of a caller's transaction: fills lanes that jobs have left, and wakes workers. The first call locks the
-- lanes of all rows, in order; the locks are held for the commit alone. Rows of other transactions are not seen,
-- because none of them outlives its own.
CREATE FUNCTION @S.wake_at_end() RETURNS trigger LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
  v_ready int := NEW.ready;
  v_queue int;
BEGIN
  FOR v_queue IN SELECT DISTINCT e.queue FROM @S.job_ends e WHERE e.lane IS NOT NULL ORDER BY 1 LOOP
    PERFORM @S.lock_names(v_queue, ARRAY(SELECT e.lane FROM @S.job_ends e WHERE e.queue = v_queue));
  END LOOP;
  DELETE FROM @S.job_ends WHERE number = NEW.number;
  IF NEW.lane IS NOT NULL THEN
    v_ready := v_ready + @S.fill_lane(NEW.queue, NEW.lane, NEW.lane_limit);
  END IF;
  PERFORM @S.wake_sleepers(q.queue, v_ready) FROM @S.queues q WHERE q.queue = NEW.queue AND NOT q.paused;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER wake_at_end AFTER INSERT ON @S.job_ends
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION @S.wake_at_end();
