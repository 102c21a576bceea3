-- job, jobs_after, job_counts, queue_names: what operators read. Nothing is changed.

-- A job as it is shown.
CREATE TYPE @S.job_view AS (
  id bigint,
  state text,
  priority int,
  due bigint,
  pushed bigint,
  ended bigint,
  attempts int,
  max_attempts int,
  crashes int,
  key text,
  mode int,
  lane text,
  worker uuid,
  fence bigint,
  cancelled bool,
  progress bytea,
  tried int[],
  at bigint[],
  errors text[],
  payload bytea
);

CREATE FUNCTION @S.view_of_job(j @S.jobs, p_ended bigint, p_payload bytea) RETURNS @S.job_view
LANGUAGE sql STABLE AS $$
  SELECT j.id, j.state::text, j.priority::int, j.due, j.pushed, p_ended, j.attempts::int,
    j.max_attempts::int, j.crashes::int, j.key::text, j.mode::int, j.lane::text, j.worker, j.fence, j.cancelled,
    n.progress, n.tried, n.at, n.errors, p_payload
  FROM (VALUES (1)) one LEFT JOIN @S.job_notes n ON n.id = j.id
$$;

-- Returns an ended job as the row that it was.
CREATE FUNCTION @S.job_of_ended(e @S.ended_jobs) RETURNS @S.jobs LANGUAGE sql IMMUTABLE AS $$
  SELECT e.id, e.due, e.place, e.pushed, e.fence, e.queue, e.attempts, e.max_attempts, e.crashes, e.class,
    e.priority, e.state, e.cancelled, e.keyed, e.mode, e.lane_limit, e.first_pause, e.most_pause, e.worker,
    e.key, e.lane, e.load
$$;

-- Returns one job in full, or no row.
CREATE FUNCTION @S.job(p_ns int, p_name text, p_id bigint) RETURNS SETOF @S.job_view LANGUAGE plpgsql STABLE
AS $$
DECLARE
  v_queue int := (SELECT q.queue FROM @S.queues q WHERE q.ns = p_ns AND q.name = p_name);
BEGIN
  RETURN QUERY SELECT v.* FROM (
      SELECT j AS job, 0::bigint AS ended FROM @S.jobs j WHERE j.queue = v_queue AND j.id = p_id
      UNION ALL
      SELECT @S.job_of_ended(e), e.ended FROM @S.ended_jobs e WHERE e.queue = v_queue AND e.id = p_id) f,
    LATERAL @S.view_of_job(f.job, f.ended, coalesce((f.job).load,
      (SELECT l.payload FROM @S.loads l WHERE l.id = p_id))) v;
END $$;

-- Returns a page of jobs after a number, in order, without their payloads; of one state if it is given.
CREATE FUNCTION @S.jobs_after(p_ns int, p_name text, p_state text, p_after bigint, p_limit int)
RETURNS SETOF @S.job_view LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_queue int := (SELECT q.queue FROM @S.queues q WHERE q.ns = p_ns AND q.name = p_name);
  v_state "char" := p_state;
BEGIN
  RETURN QUERY SELECT v.* FROM (
      (SELECT j AS job, 0::bigint AS ended FROM @S.jobs j WHERE j.queue = v_queue AND j.id > p_after
          AND (v_state IS NULL OR j.state = v_state) ORDER BY j.id LIMIT p_limit)
      UNION ALL
      (SELECT @S.job_of_ended(e), e.ended FROM @S.ended_jobs e WHERE e.queue = v_queue AND e.id > p_after
          AND (v_state IS NULL OR e.state = v_state) ORDER BY e.id LIMIT p_limit)) f,
    LATERAL @S.view_of_job(f.job, f.ended, NULL) v
    ORDER BY (f.job).id LIMIT p_limit;
END $$;

-- Returns how many jobs a queue has in each state, and its settings; no row if there is no such queue. Up to
-- 10,000 jobs of a state are counted, by an index; of more, the number is the planner's estimate, so that the
-- cost does not grow with the queue.
CREATE FUNCTION @S.job_counts(p_ns int, p_name text) RETURNS TABLE (state text, jobs bigint, paused bool,
  keep_dead bigint, keep_done bigint, aging bigint) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  q @S.queues;
BEGIN
  SELECT * INTO q FROM @S.queues x WHERE x.ns = p_ns AND x.name = p_name;
  IF NOT FOUND THEN RETURN; END IF;
  FOREACH state IN ARRAY ARRAY['s', 'b', 'r', 'w', 'd', 'f'] LOOP
    jobs := @S.count_state(q.queue, state::"char", 10000);
    RETURN QUERY SELECT state, jobs, q.paused, q.keep_dead, q.keep_done, q.aging;
  END LOOP;
END $$;

-- Counts the jobs of one state, up to p_exact. Each statement names its state, because only so it matches the
-- partial index of the state.
CREATE FUNCTION @S.count_state(p_queue int, p_state "char", p_exact int) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_count bigint;
  v_table text := CASE WHEN p_state IN ('d', 'f') THEN 'ended_jobs' ELSE 'jobs' END;
  v_where text := format('FROM @S.%I j WHERE j.queue = %s AND j.state = %L', v_table, p_queue, p_state)
    || CASE WHEN p_state = 'b' THEN ' AND j.lane IS NOT NULL' ELSE '' END;
  v_plan json;
BEGIN
  EXECUTE format('SELECT count(*) FROM (SELECT %s LIMIT %s) c', v_where, p_exact + 1) INTO v_count;
  IF v_count > p_exact THEN
    EXECUTE 'EXPLAIN (FORMAT JSON) SELECT ' || v_where INTO v_plan;
    v_count := greatest(v_count, (v_plan -> 0 -> 'Plan' ->> 'Plan Rows')::bigint);
  END IF;
  RETURN v_count;
END $$;

-- Returns the names of all queues of a namespace, in order.
CREATE FUNCTION @S.queue_names(p_ns int) RETURNS SETOF text LANGUAGE sql STABLE AS
$$ SELECT q.name FROM @S.queues q WHERE q.ns = p_ns ORDER BY q.name $$;
