-- Jobs: tables, and the steps that every verb of a queue is made of. The rules are those of ledger/jobs/.
--
-- A job that waits or runs is a row of `jobs`, which is narrow because every change of its state writes it
-- anew: a payload above 96 bytes is a row of `loads`, progress and errors are a row of `job_notes`. A job that
-- is dead or done is a row of `ended_jobs` instead, so that the indexes of claims never pass it.
--
-- States:  s scheduled   b blocked (its lane is full)   r ready   w running   |   d dead   f done
--
-- Locks, in this order, so that no two transactions deadlock:
--   1. the row of the workers' slot, only while jobs of lost workers are looked for: a renewal has it too, so
--      that a worker which is seen as gone cannot be renewed in the same moment (J4);
--   2. the locks of lanes and keys (lock_names), sorted. A transaction that counts the places of a
--      lane, or gives a key to a job, has its lock. A claim changes no place of a lane, and takes none of these;
--   3. rows of jobs. A blocked row is locked under the lock of its lane alone. Claims, rescue and promotion
--      skip rows that are locked;
--   4. rows of `sleepers`.
-- A lane and a key never change, so they can be read before anything is locked. A transaction of a caller may
-- be long: it takes the locks of its keys, but no lock of a lane (see push_jobs and complete_job).

-- Numbers of jobs: one source for all queues, so that a number grows in each of them.
CREATE SEQUENCE @S.job_numbers;

CREATE TABLE @S.queues (
  queue int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ns int NOT NULL,
  name text COLLATE "C" NOT NULL,
  paused bool NOT NULL DEFAULT false,
  keep_dead bigint NOT NULL DEFAULT 2592000000000,
  keep_done bigint NOT NULL DEFAULT 0,
  aging bigint NOT NULL DEFAULT 0,
  -- A job with a lane was pushed once: otherwise no verb looks for lanes.
  lanes bool NOT NULL DEFAULT false,
  UNIQUE (ns, name)
);

-- When jobs of lost workers were looked for. Apart from the queue, because it changes every second.
CREATE UNLOGGED TABLE @S.queue_looks (
  queue int PRIMARY KEY,
  looked bigint NOT NULL
);

CREATE TABLE @S.jobs (
  id bigint NOT NULL,
  due bigint NOT NULL,
  -- The rank among ready jobs is class, place, id.
  place bigint NOT NULL,
  pushed bigint NOT NULL,
  -- The fence of the last attempt; NULL before the first.
  fence bigint,
  queue int NOT NULL,
  attempts smallint NOT NULL DEFAULT 0,
  max_attempts smallint NOT NULL,
  crashes smallint NOT NULL DEFAULT 0,
  class smallint NOT NULL,
  priority smallint NOT NULL,
  state "char" NOT NULL,
  cancelled bool NOT NULL DEFAULT false,
  -- It has its key. A job that runs may have a key that it has not: mode 0 until started, 1 until done, 2 replace.
  keyed bool NOT NULL DEFAULT false,
  mode smallint,
  lane_limit int,
  first_pause bigint,
  most_pause bigint,
  worker uuid,
  key text COLLATE "C",
  lane text COLLATE "C",
  -- NULL: the payload is in `loads`.
  load bytea,
  PRIMARY KEY (queue, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE INDEX jobs_ready ON @S.jobs (queue, class, place, id) WHERE state = 'r';
CREATE INDEX jobs_scheduled ON @S.jobs (queue, due, id) WHERE state = 's';
CREATE INDEX jobs_lanes ON @S.jobs (queue, lane, state, class, place, id)
  WHERE lane IS NOT NULL AND state <> 's';
CREATE INDEX jobs_running ON @S.jobs (queue, worker, id) WHERE state = 'w';
CREATE INDEX jobs_cancelled ON @S.jobs (queue, worker, id) WHERE state = 'w' AND cancelled;
CREATE UNIQUE INDEX jobs_keys ON @S.jobs (queue, key) WHERE keyed;
-- For the estimate of large counts.
CREATE STATISTICS @S.jobs_states (mcv) ON queue, state FROM @S.jobs;

-- Payloads of more than 96 bytes. Never updated.
CREATE TABLE @S.loads (
  id bigint PRIMARY KEY,
  payload bytea NOT NULL
);

-- What attempts have left behind: progress, and the last ten errors, oldest first.
CREATE TABLE @S.job_notes (
  id bigint PRIMARY KEY,
  progress bytea,
  tried int[] NOT NULL DEFAULT '{}',
  at bigint[] NOT NULL DEFAULT '{}',
  errors text[] NOT NULL DEFAULT '{}'
);

CREATE TABLE @S.ended_jobs (
  LIKE @S.jobs INCLUDING DEFAULTS,
  ended bigint NOT NULL,
  PRIMARY KEY (queue, id)
);
CREATE INDEX ended_jobs_at ON @S.ended_jobs (queue, state, ended, id);

-- The limit of a lane, as it was stated last, while a job has a place in it.
CREATE TABLE @S.lanes (
  queue int NOT NULL,
  lane text COLLATE "C" NOT NULL,
  most int NOT NULL,
  PRIMARY KEY (queue, lane)
);

-- Sessions whose workers found nothing, and are notified when a job becomes ready. Empty after a crash, which
-- ends all connections: workers look then.
CREATE UNLOGGED TABLE @S.sleepers (
  queue int NOT NULL,
  session uuid NOT NULL,
  PRIMARY KEY (queue, session)
);

-- Work that a caller's transaction leaves to its end: a row lives no longer than its transaction. See wake_at_end.
CREATE UNLOGGED TABLE @S.job_ends (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue int NOT NULL,
  ready int NOT NULL,
  lane text COLLATE "C",
  lane_limit int
);

-- Returns a queue, and makes it if there is none.
CREATE FUNCTION @S.queue_of(p_ns int, p_name text) RETURNS @S.queues LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  q @S.queues;
BEGIN
  SELECT * INTO q FROM @S.queues x WHERE x.ns = p_ns AND x.name = p_name;
  IF NOT FOUND THEN
    INSERT INTO @S.queues (ns, name) VALUES (p_ns, p_name) ON CONFLICT DO NOTHING;
    SELECT * INTO STRICT q FROM @S.queues x WHERE x.ns = p_ns AND x.name = p_name;
  END IF;
  RETURN q;
END $$;

-- Returns the number of the lock of a lane or a key. There are 256 for each queue, so that a push of many keys
-- does not fill the server's table of locks.
CREATE FUNCTION @S.name_lock(p_queue int, p_name text) RETURNS int LANGUAGE sql IMMUTABLE AS
$$ SELECT (p_queue << 8) | (hashtext(p_name) & 255) $$;

-- Locks lanes and keys until the transaction ends, in order.
CREATE FUNCTION @S.lock_names(p_queue int, p_names text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_lock int;
BEGIN
  FOR v_lock IN SELECT DISTINCT @S.name_lock(p_queue, n) FROM unnest(p_names) n WHERE n IS NOT NULL
      ORDER BY 1 LOOP
    PERFORM pg_advisory_xact_lock('@S.jobs'::regclass::oid::int, v_lock);
  END LOOP;
END $$;

-- Returns whether a lane has a place that is not taken. Places are counted as rows.
CREATE FUNCTION @S.lane_has_room(p_queue int, p_lane text, p_stated int) RETURNS bool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_most int := coalesce((SELECT l.most FROM @S.lanes l WHERE l.queue = p_queue AND l.lane = p_lane),
    p_stated);
BEGIN
  RETURN (SELECT count(*) < v_most FROM (SELECT FROM @S.jobs j WHERE j.queue = p_queue
    AND j.lane = p_lane AND j.state IN ('r', 'w') LIMIT v_most) taken);
END $$;

-- Lets the next jobs of a lane in while there is room. Returns how many became ready. A lane in which no job
-- has a place forgets its limit.
CREATE FUNCTION @S.fill_lane(p_queue int, p_lane text, p_stated int) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ready int := 0;
BEGIN
  WHILE @S.lane_has_room(p_queue, p_lane, p_stated) LOOP
    UPDATE @S.jobs SET state = 'r' WHERE queue = p_queue AND id = (SELECT j.id FROM @S.jobs j
      WHERE j.queue = p_queue AND j.lane = p_lane AND j.state = 'b'
      ORDER BY j.class, j.place, j.id LIMIT 1);
    EXIT WHEN NOT FOUND;
    v_ready := v_ready + 1;
  END LOOP;
  DELETE FROM @S.lanes l WHERE l.queue = p_queue AND l.lane = p_lane AND NOT EXISTS (
    SELECT FROM @S.jobs j WHERE j.queue = p_queue AND j.lane = p_lane AND j.state IN ('r', 'w'));
  RETURN v_ready;
END $$;

-- Returns the rank of a job among ready ones: class, and place within it.
CREATE FUNCTION @S.rank_class(p_priority int, p_aging bigint) RETURNS smallint LANGUAGE sql IMMUTABLE AS
$$ SELECT (CASE WHEN p_aging = 0 THEN 9 - p_priority ELSE 0 END)::smallint $$;
CREATE FUNCTION @S.rank_place(p_priority int, p_due bigint, p_aging bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT p_due + p_aging * (9 - p_priority) $$;

-- Decides the rank of a job, and whether it is scheduled, blocked or ready. If it still has a row in its lane,
-- its own place counts.
CREATE FUNCTION @S.entered(j @S.jobs, p_now bigint, p_aging bigint) RETURNS @S.jobs
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  j.class := @S.rank_class(j.priority, p_aging);
  j.place := @S.rank_place(j.priority, j.due, p_aging);
  j.worker := NULL;
  j.state := CASE WHEN j.due > p_now THEN 's' ELSE 'r' END;
  IF j.state = 'r' AND j.lane IS NOT NULL THEN
    INSERT INTO @S.lanes (queue, lane, most) VALUES (j.queue, j.lane, j.lane_limit) ON CONFLICT DO NOTHING;
    IF NOT @S.lane_has_room(j.queue, j.lane, j.lane_limit) THEN j.state := 'b'; END IF;
  END IF;
  RETURN j;
END $$;

-- Writes a job whose state was b.state before. Returns how many jobs became ready, the next of its lane included.
CREATE FUNCTION @S.write_job(b @S.jobs, j @S.jobs) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ready int := (j.state = 'r' AND b.state <> 'r')::int;
BEGIN
  UPDATE @S.jobs x SET due = j.due, place = j.place, class = j.class, attempts = j.attempts,
      crashes = j.crashes, state = j.state, cancelled = j.cancelled, keyed = j.keyed, key = j.key,
      mode = j.mode, worker = j.worker
    WHERE x.queue = j.queue AND x.id = j.id;
  IF j.lane IS NOT NULL AND b.state IN ('r', 'w') AND j.state NOT IN ('r', 'w') THEN
    v_ready := v_ready + @S.fill_lane(j.queue, j.lane, j.lane_limit);
  END IF;
  RETURN v_ready;
END $$;

-- Removes a job that waits or runs. Returns how many jobs of its lane became ready.
CREATE FUNCTION @S.drop_job(b @S.jobs) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  DELETE FROM @S.jobs x WHERE x.queue = b.queue AND x.id = b.id;
  DELETE FROM @S.loads l WHERE l.id = b.id;
  DELETE FROM @S.job_notes n WHERE n.id = b.id;
  IF b.lane IS NULL OR b.state NOT IN ('r', 'w') THEN RETURN 0; END IF;
  RETURN @S.fill_lane(b.queue, b.lane, b.lane_limit);
END $$;

-- Ends a job that runs as dead or done. Its key is free. Does not fill its lane.
CREATE FUNCTION @S.keep_ended(j @S.jobs, p_state "char", p_now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  DELETE FROM @S.jobs x WHERE x.queue = j.queue AND x.id = j.id;
  j.state := p_state;
  j.keyed := false;
  j.worker := NULL;
  INSERT INTO @S.ended_jobs SELECT (j).*, p_now;
END $$;

-- Makes a job that runs dead, with the error of its last attempt. Returns how many jobs became ready.
CREATE FUNCTION @S.bury_job(j @S.jobs, p_now bigint, p_error text) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM @S.note_error(j.id, j.attempts + j.crashes, p_now, p_error);
  PERFORM @S.keep_ended(j, 'd', p_now);
  IF j.lane IS NULL THEN RETURN 0; END IF;
  RETURN @S.fill_lane(j.queue, j.lane, j.lane_limit);
END $$;

-- Gives a job that comes back its key, unless a newer one has it: then it goes on without the key. So it does
-- if another transaction has the lock of the key, because that may be a caller's and last for long.
CREATE FUNCTION @S.take_key(j @S.jobs) RETURNS @S.jobs LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF j.key IS NULL OR j.keyed THEN RETURN j; END IF;
  j.keyed := pg_try_advisory_xact_lock('@S.jobs'::regclass::oid::int, @S.name_lock(j.queue, j.key))
    AND NOT EXISTS (SELECT FROM @S.jobs x WHERE x.queue = j.queue AND x.key = j.key AND x.keyed);
  IF NOT j.keyed THEN
    j.key := NULL;
    j.mode := NULL;
  END IF;
  RETURN j;
END $$;

-- Adds the error of an attempt to those that are kept: the last ten.
CREATE FUNCTION @S.note_error(p_id bigint, p_tried int, p_now bigint, p_error text) RETURNS void
LANGUAGE sql VOLATILE AS $$
  INSERT INTO @S.job_notes AS n (id, tried, at, errors)
    VALUES (p_id, ARRAY[p_tried], ARRAY[p_now], ARRAY[p_error])
    ON CONFLICT (id) DO UPDATE SET tried = (n.tried || p_tried)[greatest(cardinality(n.tried) - 8, 1):],
      at = (n.at || p_now)[greatest(cardinality(n.at) - 8, 1):],
      errors = (n.errors || p_error)[greatest(cardinality(n.errors) - 8, 1):]
$$;

-- Notifies a sleeping session for each job that has become ready. No session sleeps: no notification.
CREATE FUNCTION @S.wake_sleepers(p_queue int, p_ready int) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_session uuid;
BEGIN
  IF p_ready <= 0 THEN RETURN; END IF;
  FOR v_session IN WITH woken AS MATERIALIZED (SELECT s.session FROM @S.sleepers s
        WHERE s.queue = p_queue LIMIT p_ready FOR UPDATE SKIP LOCKED)
      DELETE FROM @S.sleepers s USING woken w WHERE s.queue = p_queue AND s.session = w.session
      RETURNING s.session LOOP
    PERFORM pg_notify('tenure:' || v_session, 'j ' || q.name) FROM @S.queues q WHERE q.queue = p_queue;
  END LOOP;
END $$;

-- Removes ended jobs that are kept no longer, p_most of each kind at most.
CREATE FUNCTION @S.sweep_ended(q @S.queues, p_now bigint, p_most int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_gone bigint[];
BEGIN
  FOR i IN 1..2 LOOP
    WITH past AS MATERIALIZED (SELECT e.id FROM @S.ended_jobs e
        WHERE e.queue = q.queue AND e.state = (ARRAY['d', 'f']::"char"[])[i]
          AND e.ended <= p_now - (ARRAY[q.keep_dead, q.keep_done])[i]
        ORDER BY e.ended, e.id LIMIT p_most FOR UPDATE SKIP LOCKED),
      gone AS (DELETE FROM @S.ended_jobs e USING past p WHERE e.queue = q.queue AND e.id = p.id
        RETURNING e.id)
      SELECT array_agg(g.id) INTO v_gone FROM gone g;
    DELETE FROM @S.loads l WHERE l.id = ANY (v_gone);
    DELETE FROM @S.job_notes n WHERE n.id = ANY (v_gone);
  END LOOP;
END $$;
