-- What the suite has in place of the real thing: a clock that it owns, and a way to end sessions.

CREATE OR REPLACE FUNCTION @S.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT current_setting('tenure.clock')::bigint $$;

-- Ends everything a session holds or waits for, as if its leases had run out now.
CREATE OR REPLACE FUNCTION @S.end_session(p_ns int, p_session uuid) RETURNS SETOF @S.answer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_all text[] := @S.lock_slots(p_ns,
    ARRAY(SELECT x.name FROM @S.slots x WHERE x.ns = p_ns), false);
  v_now bigint := @S.begin_step(p_ns, v_all, false);
  v_name text;
  v_id uuid;
  s @S.slots;
BEGIN
  FOREACH v_name IN ARRAY v_all LOOP
    SELECT * INTO s FROM @S.slots x WHERE x.ns = p_ns AND x.name = v_name;
    -- What had expired before ended then, not now.
    s := @S.expire(s, v_now);
    FOR v_id IN SELECT c.id FROM @S.claims c WHERE c.ns = p_ns AND c.name = v_name AND c.held
        AND c.session = p_session ORDER BY c.number LOOP
      s := @S.end_hold(s, v_id, v_now);
    END LOOP;
    FOR v_id IN SELECT c.id FROM @S.claims c WHERE c.ns = p_ns AND c.name = v_name AND NOT c.held
        AND c.session = p_session LOOP
      s := @S.remove_ticket(s, v_id);
    END LOOP;
    PERFORM @S.touch(p_ns, v_name, v_now);
  END LOOP;
  RETURN QUERY SELECT * FROM @S.end_step(p_ns, v_all, v_now, false);
END $$;

-- Whether one of these claims is a lone holder and has expired.
CREATE OR REPLACE FUNCTION @S.lone_expired(p_ns int, p_names text[], p_ids uuid[]) RETURNS bool
LANGUAGE sql VOLATILE AS $$
SELECT EXISTS (SELECT FROM @S.slots s JOIN @S.claims c ON c.ns = s.ns AND c.name = s.name AND c.id = s.lone
  WHERE s.ns = p_ns AND s.name = ANY (p_names) AND s.lone = ANY (p_ids) AND c.expires <= @S.clock()) $$;

-- Whether one of these claims is a lone holder whose new expiry comes before its old one.
CREATE OR REPLACE FUNCTION @S.lone_outlasts(p_ns int, p_names text[], p_ids uuid[], p_leases bigint[])
RETURNS bool LANGUAGE sql VOLATILE AS $$
SELECT EXISTS (SELECT FROM @S.slots s JOIN unnest(p_ids, p_leases) u (id, lease) ON s.lone = u.id
  WHERE s.ns = p_ns AND s.name = ANY (p_names) AND s.calm > @S.clock() + u.lease) $$;

-- How often each path was taken that the functions mark with a comment --#path NAME [if CONDITION].
CREATE OR REPLACE FUNCTION @S.paths() RETURNS TABLE (path text, taken bigint) LANGUAGE sql STABLE AS $$
SELECT obj_description(c.oid, 'pg_class'), coalesce(pg_sequence_last_value(c.oid), 0)
  FROM pg_class c WHERE c.relnamespace = '@S'::regnamespace AND c.relname LIKE 'path\_%' $$;

-- Puts a counter where a path is marked. A sequence counts without locks and without the transaction.
DO $do$
DECLARE
  v_function oid;
  v_text text;
  v_mark text[];
  v_count text;
BEGIN
  FOR v_function IN SELECT p.oid FROM pg_proc p
      WHERE p.pronamespace = '@S'::regnamespace AND p.prosrc LIKE '%--#path %' LOOP
    v_text := pg_get_functiondef(v_function);
    FOR v_mark IN SELECT regexp_matches(v_text, '--#path ([^\n]+?)(?: if ([^\n]+))?\n', 'g') LOOP
      -- Names of sequences are short.
      v_count := 'path_' || md5(v_mark[1]);
      EXECUTE format('CREATE SEQUENCE IF NOT EXISTS @S.%I', v_count);
      EXECUTE format('COMMENT ON SEQUENCE @S.%I IS %L', v_count, v_mark[1]);
      v_count := format('PERFORM nextval(%L);', '@S.' || v_count);
      IF v_mark[2] IS NOT NULL THEN
        v_count := 'IF ' || v_mark[2] || ' THEN ' || v_count || ' END IF;';
        v_mark[1] := v_mark[1] || ' if ' || v_mark[2];
      END IF;
      v_text := replace(v_text, '--#path ' || v_mark[1] || E'\n', v_count || E'\n');
    END LOOP;
    EXECUTE v_text;
  END LOOP;
END $do$;
