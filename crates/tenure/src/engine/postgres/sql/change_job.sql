-- change_job: a change by an operator. Replies, by kind: d done, t told (the job runs, and its worker learns that
-- it was cancelled), u unknown, or i with the state that the job is in. p_verb: cancel, delete, retry, pause,
-- resume, configure.
CREATE FUNCTION @S.change_job(p_ns int, p_name text, p_verb text, p_id bigint, p_keep_dead bigint,
  p_keep_done bigint, p_aging bigint, OUT kind text, OUT state text) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  q @S.queues := @S.queue_of(p_ns, p_name);
  v_now bigint;
  v_lane text;
  v_key text;
  v_ready int := 0;
  j @S.jobs;
  e @S.ended_jobs;
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  kind := 'd';
  IF p_verb IN ('pause', 'resume') THEN
    UPDATE @S.queues x SET paused = p_verb = 'pause' WHERE x.queue = q.queue;
    IF q.paused AND p_verb = 'resume' THEN
      -- Everything that is ready may be claimed now.
      PERFORM @S.wake_sleepers(q.queue, (SELECT count(*)::int FROM (SELECT FROM @S.jobs x
        WHERE x.queue = q.queue AND x.state = 'r' LIMIT 1000) r));
    END IF;
    RETURN;
  ELSIF p_verb = 'configure' THEN
    UPDATE @S.queues x SET keep_dead = p_keep_dead, keep_done = p_keep_done, aging = p_aging
      WHERE x.queue = q.queue;
    RETURN;
  END IF;
  -- Lane and key never change: read before the locks.
  SELECT x.lane, x.key INTO v_lane, v_key FROM @S.jobs x WHERE x.queue = q.queue AND x.id = p_id;
  IF NOT FOUND THEN
    SELECT x.lane, x.key INTO v_lane, v_key FROM @S.ended_jobs x WHERE x.queue = q.queue AND x.id = p_id;
  END IF;
  PERFORM @S.lock_names(q.queue, ARRAY[v_lane] || CASE WHEN p_verb = 'retry' THEN v_key END);
  v_now := @S.clock();
  SELECT * INTO j FROM @S.jobs x WHERE x.queue = q.queue AND x.id = p_id FOR UPDATE;
  IF FOUND THEN
    IF p_verb <> 'cancel' THEN
      kind := 'i';
      state := j.state;
    ELSIF j.state = 'w' THEN
      kind := 't';
      UPDATE @S.jobs x SET cancelled = true WHERE x.queue = q.queue AND x.id = p_id;
      PERFORM pg_notify('tenure:' || c.session, 'j ' || p_name) FROM @S.claims c
        WHERE c.id = j.worker AND c.ns = p_ns AND c.session IS NOT NULL;
    ELSE
      v_ready := @S.drop_job(j);
    END IF;
  ELSE
    SELECT * INTO e FROM @S.ended_jobs x WHERE x.queue = q.queue AND x.id = p_id FOR UPDATE;
    IF NOT FOUND THEN
      kind := 'u';
    ELSIF p_verb = 'delete' THEN
      DELETE FROM @S.ended_jobs x WHERE x.queue = q.queue AND x.id = p_id;
      DELETE FROM @S.loads l WHERE l.id = p_id;
      DELETE FROM @S.job_notes n WHERE n.id = p_id;
    ELSIF p_verb = 'retry' AND e.state = 'd' THEN
      v_ready := @S.retry_job(q, e, v_now);
    ELSE
      kind := 'i';
      state := e.state;
    END IF;
  END IF;
  IF NOT q.paused THEN PERFORM @S.wake_sleepers(q.queue, v_ready); END IF;
END $$;

-- Puts a dead job back into its queue, due now, with all its attempts. Returns how many jobs became ready.
CREATE FUNCTION @S.retry_job(q @S.queues, e @S.ended_jobs, p_now bigint) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  j @S.jobs := ROW(e.id, p_now, e.place, e.pushed, e.fence, e.queue, 0, e.max_attempts, 0, e.class, e.priority,
    's', false, false, e.mode, e.lane_limit, e.first_pause, e.most_pause, NULL, e.key, e.lane, e.load);
BEGIN
  DELETE FROM @S.ended_jobs x WHERE x.queue = e.queue AND x.id = e.id;
  j := @S.take_key(j);
  j := @S.entered(j, p_now, q.aging);
  INSERT INTO @S.jobs SELECT (j).*;
  RETURN (j.state = 'r')::int;
END $$;

-- Removes ended jobs that are kept no longer, and the oldest dead and done ones of a queue that has more than
-- 100,000 of them.
CREATE FUNCTION @S.sweep_jobs(p_ns int) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  q @S.queues;
  v_state "char";
  v_gone bigint[];
BEGIN
  FOR q IN SELECT * FROM @S.queues x WHERE x.ns = p_ns ORDER BY x.name LOOP
    PERFORM @S.sweep_ended(q, @S.clock(), 10000);
    FOREACH v_state IN ARRAY ARRAY['d', 'f']::"char"[] LOOP
      WITH many AS MATERIALIZED (SELECT e.id FROM @S.ended_jobs e
          WHERE e.queue = q.queue AND e.state = v_state ORDER BY e.ended DESC, e.id DESC
          OFFSET 100000 LIMIT 10000 FOR UPDATE SKIP LOCKED),
        gone AS (DELETE FROM @S.ended_jobs e USING many m WHERE e.queue = q.queue AND e.id = m.id
          RETURNING e.id)
        SELECT array_agg(g.id) INTO v_gone FROM gone g;
      DELETE FROM @S.loads l WHERE l.id = ANY (v_gone);
      DELETE FROM @S.job_notes n WHERE n.id = ANY (v_gone);
    END LOOP;
  END LOOP;
END $$;
