-- push_job, complete_job: jobs in a caller's own transaction, from any language. docs/jobs.md describes them for
-- users. What is pushed is there when the transaction commits, and not at all if it is rolled back; an attempt
-- that is completed ends with the transaction, so that its effect there is made exactly once (J6).
--
-- Sleeping workers are woken at the end of the transaction (wake_at_end). Both set what their plans need, because
-- the session is not one of the engine's.

-- Adds a job. Returns its number, or that of the job that has its key. p_unique: started, done, replace.
CREATE FUNCTION @S.push_job(p_namespace text, p_queue text, p_payload bytea, p_priority int DEFAULT 4,
  p_due timestamptz DEFAULT NULL, p_key text DEFAULT NULL, p_unique text DEFAULT 'started',
  p_lane text DEFAULT NULL, p_lane_limit int DEFAULT 1, p_max_attempts int DEFAULT 20,
  p_first_pause interval DEFAULT '1 second', p_most_pause interval DEFAULT '1 hour') RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
  v_ns int := @S.namespace_of(p_namespace);
  v_mode int := array_position(ARRAY['started', 'done', 'replace'], p_unique) - 1;
  v_first bigint := extract(epoch FROM p_first_pause) * 1000000;
  v_most bigint := extract(epoch FROM p_most_pause) * 1000000;
  v_wrong text := CASE
    WHEN p_queue IS NULL OR octet_length(p_queue) NOT BETWEEN 1 AND 200 THEN 'the queue has 1 to 200 bytes'
    WHEN p_payload IS NULL OR octet_length(p_payload) > 262144 THEN 'the payload has 0 to 262144 bytes'
    WHEN p_priority IS NULL OR p_priority NOT BETWEEN 0 AND 9 THEN 'the priority is 0 to 9'
    WHEN octet_length(p_key) NOT BETWEEN 1 AND 200 THEN 'the key has 1 to 200 bytes'
    WHEN v_mode IS NULL THEN 'p_unique is started, done or replace'
    WHEN octet_length(p_lane) NOT BETWEEN 1 AND 200 THEN 'the lane has 1 to 200 bytes'
    WHEN p_lane_limit IS NULL OR p_lane_limit NOT BETWEEN 1 AND 1000 THEN 'the limit of a lane is 1 to 1000'
    WHEN p_max_attempts IS NULL OR p_max_attempts NOT BETWEEN 1 AND 1000 THEN 'max attempts is 1 to 1000'
    WHEN v_first IS NULL OR v_most IS NULL OR v_first < 0 OR v_first > v_most OR v_most > 86400000000
      THEN 'the pauses grow, to 24 hours at most' END;
BEGIN
  IF v_wrong IS NOT NULL THEN
    RAISE EXCEPTION 'job not pushed: %', v_wrong USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN (SELECT p.id FROM @S.push_jobs(v_ns, p_queue, true, false, ARRAY[p_payload], ARRAY[p_priority],
    ARRAY[CASE WHEN p_due IS NULL THEN 0 END]::bigint[],
    ARRAY[extract(epoch FROM p_due) * 1000000]::bigint[], ARRAY[p_max_attempts], ARRAY[v_first],
    ARRAY[v_most], ARRAY[p_key], ARRAY[CASE WHEN p_key IS NOT NULL THEN v_mode END], ARRAY[p_lane],
    ARRAY[CASE WHEN p_lane IS NOT NULL THEN p_lane_limit END]) p);
END $$;

-- Ends the attempt p_fence of a job as complete. Fails with the code TNJ01 if that is not the attempt that runs:
-- then another worker has the job, and the transaction must be rolled back.
CREATE FUNCTION @S.complete_job(p_namespace text, p_queue text, p_id bigint, p_fence bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
  v_ns int := @S.namespace_of(p_namespace);
  q @S.queues;
  j @S.jobs;
BEGIN
  SELECT * INTO q FROM @S.queues x WHERE x.ns = v_ns AND x.name = p_queue;
  SELECT * INTO j FROM @S.jobs x WHERE x.queue = q.queue AND x.id = p_id AND x.state = 'w'
    AND x.fence = p_fence FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'attempt % of job % in queue "%" is not the current one', p_fence, p_id, p_queue
      USING ERRCODE = 'TNJ01', HINT = 'roll back: another worker has the job, or it is done';
  END IF;
  IF j.lane IS NOT NULL THEN
    -- The lane is locked and filled at the end: this transaction may be long.
    INSERT INTO @S.job_ends (queue, ready, lane, lane_limit) VALUES (q.queue, 0, j.lane, j.lane_limit);
    IF q.keep_done = 0 THEN j.lane := NULL; END IF;
  END IF;
  IF q.keep_done = 0 THEN
    PERFORM @S.drop_job(j);
  ELSE
    PERFORM @S.keep_ended(j, 'f', @S.clock());
  END IF;
END $$;

CREATE FUNCTION @S.namespace_of(p_name text) RETURNS int LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_ns int := (SELECT s.ns FROM @S.spaces s WHERE s.name = p_name);
BEGIN
  IF v_ns IS NULL THEN
    RAISE EXCEPTION 'no namespace "%"', p_name USING ERRCODE = 'invalid_parameter_value',
      HINT = 'a namespace exists from the first connection of a Tenure client on';
  END IF;
  RETURN v_ns;
END $$;
