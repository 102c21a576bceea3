-- Cells: small versioned values, written in batches on conditions. The rules are those of ledger/cells.rs.
--
-- Locks. Every change of a cell's row and of its log is made under an advisory lock of the cell, by a hash
-- of its name: exclusive if the batch writes the cell, shared if it only checks it. Rows are not locked:
-- there may be none, and to lock a row is to write to it, while a batch that is refused must write nothing.
-- Two names with one hash share a lock, which costs time and nothing else.
-- * No deadlock: a batch takes its locks in the order of the hashes and waits for no lock of a cell after
--   that. It may wait for the lock of mint and for that of the watches (below); a transaction that has one
--   of these waits for no cell. The sweep only tries to lock.
-- * No lost write: the locks are kept until the commit is visible, and each statement after them has a
--   snapshot of its own (READ COMMITTED), so it sees what the transactions before it have committed.
-- * The clock is read after the locks, because the wait for them may have been long.
--
-- Watches. A write notifies only if the cell is watched (table watches): PostgreSQL serializes commits that
-- notify. A write reads that table under a shared lock of the namespace's watches, kept until the commit;
-- watch adds to the table under the same lock, exclusively. So a write that does not see a watch is committed
-- before watch returns, and a read of the cell after that sees it. Every later write sees the watch and
-- notifies, in its own transaction: a client that dies after its commit has notified.

-- Returns the key of the advisory lock of a cell.
CREATE FUNCTION @S.cell_key(p_ns int, p_name text) RETURNS int LANGUAGE sql IMMUTABLE AS
$$ SELECT hashtext(p_ns::text || ' ' || p_name) $$;

-- Returns whether a cell has a value at this time.
CREATE FUNCTION @S.lives(p_value bytea, p_expires bigint, p_now bigint) RETURNS bool LANGUAGE sql
IMMUTABLE AS $$ SELECT p_value IS NOT NULL AND (p_expires IS NULL OR p_expires > p_now) $$;

-- Returns the channel on which the namespace's writes to watched cells are notified.
CREATE FUNCTION @S.cells_channel(p_ns int) RETURNS text LANGUAGE sql STABLE AS
$$ SELECT 'tenure:cells:' || '@S.watches'::regclass::oid || ':' || p_ns $$;

-- Writes all parts of a batch, or none. A part is a name, a condition (any, absent, version or fence, with
-- what is given for the last two), whether it is written, and the value; without a value it is removed.
-- p_id is the id of the batch, if it has one, made p_age ago; ids are kept for p_keep. Rows, by kind:
--
-- d  done, now or before: version, watched = whether anything was notified
-- r  refused, one row for each condition that does not hold: part, and the present cell if there is one
-- s  the same where a larger fence has written the cell: part, fence
-- f  forgotten: whether it was done before cannot be told; part = the first that would be written
CREATE FUNCTION @S.write(p_ns int, p_keep bigint, p_id uuid, p_age bigint, p_names text[],
  p_expects text[], p_given bigint[], p_writes bool[], p_values bytea[], p_ttls bigint[])
RETURNS TABLE (kind text, part int, value bytea, version bigint, fence bigint, expires_in bigint,
  watched bool) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  v_now bigint := @S.lock_cells(p_ns, p_names, p_writes);
  v_told bool;
  v_swept int;
BEGIN
  IF p_id IS NOT NULL THEN
    SELECT 'd', l.version INTO kind, version
      FROM unnest(p_names, p_writes) WITH ORDINALITY u (name, writes, nth)
      JOIN @S.cell_log l ON l.ns = p_ns AND l.name = u.name AND l.id = p_id
      WHERE u.writes ORDER BY u.nth LIMIT 1;
    --#path postgres write: a repeat if FOUND
    IF FOUND THEN
      RETURN NEXT;
      RETURN;
    END IF;
    -- Told are cells whose log has everything since the id was made, and those with the version that is
    -- expected: the batch would have raised it.
    SELECT min(u.nth), bool_or(
        (p_age < p_keep AND (c.dropped IS NULL OR c.dropped < v_now - p_age))
        OR (u.expect = 'version' AND c.version = u.given AND @S.lives(c.value, c.expires, v_now)))
      INTO part, v_told
      FROM unnest(p_names, p_writes, p_expects, p_given) WITH ORDINALITY
        u (name, writes, expect, given, nth)
      LEFT JOIN @S.cells c ON c.ns = p_ns AND c.name = u.name
      WHERE u.writes;
    IF part IS NOT NULL AND v_told IS NOT TRUE THEN
      kind := 'f';
      RETURN NEXT;
      RETURN;
    END IF;
  END IF;
  IF array_remove(p_expects, 'any') <> '{}' THEN
    RETURN QUERY SELECT CASE WHEN u.expect = 'fence' THEN 's' ELSE 'r' END, u.nth::int,
        CASE WHEN u.expect <> 'fence' AND @S.lives(c.value, c.expires, v_now) THEN c.value END,
        c.version, c.fence, c.expires - v_now, false
      FROM unnest(p_names, p_expects, p_given) WITH ORDINALITY u (name, expect, given, nth)
      LEFT JOIN @S.cells c ON c.ns = p_ns AND c.name = u.name
      WHERE CASE u.expect
        WHEN 'absent' THEN @S.lives(c.value, c.expires, v_now)
        WHEN 'version' THEN (c.version = u.given AND @S.lives(c.value, c.expires, v_now)) IS NOT TRUE
        WHEN 'fence' THEN c.fence > u.given END
      ORDER BY u.nth;
    --#path postgres write: refused if FOUND
    IF FOUND THEN RETURN; END IF;
  END IF;
  kind := 'd';
  part := NULL;
  version := @S.put_cells(p_ns, p_keep, p_id, v_now, p_names, p_expects, p_given, p_writes, p_values,
    p_ttls);
  watched := @S.notify_watches(p_ns, p_names, p_writes);
  v_swept := @S.sweep_cells(p_ns, v_now, 2 + 2 * cardinality(p_names));
  RETURN NEXT;
END $$;

-- Locks the cells of a batch, in the order of their keys. Returns the time, read after that.
CREATE FUNCTION @S.lock_cells(p_ns int, p_names text[], p_writes bool[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_key int;
  v_writes bool;
  v_locked text;
BEGIN
  IF cardinality(p_names) = 1 AND p_writes[1] THEN
    --#path postgres write: locks one cell
    -- The usual case. An expression rather than a statement, which costs several times as much.
    v_locked := pg_advisory_xact_lock('@S.cells'::regclass::oid::int, @S.cell_key(p_ns, p_names[1]));
    RETURN @S.clock();
  END IF;
  --#path postgres write: locks in order
  FOR v_key, v_writes IN SELECT @S.cell_key(p_ns, u.name), bool_or(u.writes)
      FROM unnest(p_names, p_writes) u (name, writes) GROUP BY 1 ORDER BY 1 LOOP
    IF v_writes THEN
      PERFORM pg_advisory_xact_lock('@S.cells'::regclass::oid::int, v_key);
    ELSE
      PERFORM pg_advisory_xact_lock_shared('@S.cells'::regclass::oid::int, v_key);
    END IF;
  END LOOP;
  RETURN @S.clock();
END $$;

-- Writes the parts of a batch whose conditions hold, and records its id in the logs. Returns the version.
CREATE FUNCTION @S.put_cells(p_ns int, p_keep bigint, p_id uuid, p_now bigint, p_names text[],
  p_expects text[], p_given bigint[], p_writes bool[], p_values bytea[], p_ttls bigint[])
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_version bigint := @S.mint();
BEGIN
  INSERT INTO @S.cells AS x (ns, name, value, version, fence, expires, logged, logged_at, dropped,
      ends)
    SELECT p_ns, n.name, n.value, v_version, n.fence, n.expires, n.logged, n.logged_at, n.dropped,
      n.ends
    FROM (SELECT w.*, CASE WHEN w.fence IS NULL AND (w.value IS NULL OR w.expires IS NOT NULL)
          THEN coalesce(greatest(w.expires, w.logged_at + p_keep), 0) END AS ends
        FROM (SELECT u.name, u.value, p_now + u.ttl AS expires,
            CASE WHEN u.expect = 'fence' THEN u.given ELSE c.fence END AS fence,
            coalesce(c.logged, 0) + (p_id IS NOT NULL)::int AS logged,
            CASE WHEN p_id IS NULL THEN c.logged_at ELSE p_now END AS logged_at,
            greatest(c.dropped, l.at) AS dropped
          FROM unnest(p_names, p_expects, p_given, p_writes, p_values, p_ttls)
            u (name, expect, given, writes, value, ttl)
          LEFT JOIN @S.cells c ON c.ns = p_ns AND c.name = u.name
          -- The entry whose place in the log is taken by this write.
          LEFT JOIN @S.cell_log l ON p_id IS NOT NULL AND l.ns = p_ns AND l.name = u.name
            AND l.place = c.logged % 128
          WHERE u.writes) w) n
    -- A removed cell of which nothing has to be remembered needs no row.
    WHERE n.ends IS NULL OR n.ends > p_now
    ON CONFLICT (ns, name) DO UPDATE SET value = EXCLUDED.value, version = EXCLUDED.version,
      fence = EXCLUDED.fence, expires = EXCLUDED.expires, logged = EXCLUDED.logged,
      logged_at = EXCLUDED.logged_at, dropped = EXCLUDED.dropped, ends = EXCLUDED.ends;
  IF p_id IS NOT NULL THEN
    --#path postgres write: recorded
    INSERT INTO @S.cell_log AS x (ns, name, place, id, version, at)
      SELECT p_ns, c.name, (c.logged - 1) % 128, p_id, v_version, p_now
      FROM unnest(p_names, p_writes) u (name, writes)
      JOIN @S.cells c ON c.ns = p_ns AND c.name = u.name
      WHERE u.writes
      ON CONFLICT (ns, name, place) DO UPDATE SET id = EXCLUDED.id, version = EXCLUDED.version,
        at = EXCLUDED.at;
  ELSIF array_position(p_values, NULL) IS NOT NULL THEN
    --#path postgres remove: without an id
    -- Rows without the new version are those of removed cells that the insert above has left out.
    WITH gone AS (
      DELETE FROM @S.cells c USING unnest(p_names, p_writes) u (name, writes)
        WHERE u.writes AND c.ns = p_ns AND c.name = u.name AND c.version <> v_version
        RETURNING c.name)
    DELETE FROM @S.cell_log l USING gone g WHERE l.ns = p_ns AND l.name = g.name;
  END IF;
  RETURN v_version;
END $$;

-- Notifies the written cells that are watched. Returns whether there are any.
CREATE FUNCTION @S.notify_watches(p_ns int, p_names text[], p_writes bool[]) RETURNS bool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_locked text := pg_advisory_xact_lock_shared('@S.cell_log'::regclass::oid::int, p_ns);
BEGIN
  -- A statement of its own: it sees a watch that was added while the lock was waited for.
  PERFORM pg_notify(@S.cells_channel(p_ns), u.name) FROM unnest(p_names, p_writes) u (name, writes)
    WHERE u.writes AND (
      EXISTS (SELECT FROM @S.watches w WHERE w.ns = p_ns AND NOT w.prefix AND w.name = u.name)
      OR EXISTS (SELECT FROM @S.watches w WHERE w.ns = p_ns AND w.prefix AND w.name <= u.name
        AND starts_with(u.name, w.name)));
  RETURN FOUND;
END $$;

-- Deletes rows of cells that are needed no more, with their logs. Skips those that another client has
-- locked, so it never waits. The last step of a transaction: its locks are in no order. Returns how many.
CREATE FUNCTION @S.sweep_cells(p_ns int, p_now bigint, p_most int) RETURNS int LANGUAGE plpgsql
VOLATILE AS $$
DECLARE
  v_name text;
  v_count int := 0;
BEGIN
  FOR v_name IN SELECT c.name FROM @S.cells c WHERE c.ns = p_ns AND c.ends <= p_now
      ORDER BY c.ends LIMIT p_most LOOP
    CONTINUE WHEN NOT pg_try_advisory_xact_lock('@S.cells'::regclass::oid::int,
      @S.cell_key(p_ns, v_name));
    DELETE FROM @S.cells c WHERE c.ns = p_ns AND c.name = v_name AND c.ends <= p_now;
    IF FOUND THEN DELETE FROM @S.cell_log l WHERE l.ns = p_ns AND l.name = v_name; END IF;
    v_count := v_count + 1;
  END LOOP;
  RETURN v_count;
END $$;

-- Sets what a client watches: names, or prefixes of names. Returns the channel to listen to. Called on the
-- connection that listens, which keeps a shared lock of the watcher while it has watches: a watch
-- whose lock is free belongs to a client that is gone. p_kept says whether this connection has it.
CREATE FUNCTION @S.watch(p_space text, p_watcher uuid, p_kept bool, p_names text[],
  p_prefixes bool[]) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ns int := (SELECT p.ns FROM @S.spaces p WHERE p.name = p_space);
  v_class int := '@S.watches'::regclass::oid::int;
BEGIN
  PERFORM @S.sweep_watches(v_ns, p_watcher);
  IF NOT p_kept AND p_names <> '{}' THEN
    PERFORM pg_advisory_lock_shared(v_class, hashtext(p_watcher::text));
  END IF;
  PERFORM pg_advisory_xact_lock('@S.cell_log'::regclass::oid::int, v_ns);
  DELETE FROM @S.watches w WHERE w.ns = v_ns AND w.watcher = p_watcher
    AND NOT EXISTS (SELECT FROM unnest(p_names, p_prefixes) u (name, prefix)
      WHERE u.name = w.name AND u.prefix = w.prefix);
  INSERT INTO @S.watches (ns, prefix, name, watcher)
    SELECT v_ns, u.prefix, u.name, p_watcher FROM unnest(p_names, p_prefixes) u (name, prefix)
    ON CONFLICT DO NOTHING;
  IF p_kept AND p_names = '{}' THEN
    PERFORM pg_advisory_unlock_shared(v_class, hashtext(p_watcher::text));
  END IF;
  RETURN @S.cells_channel(v_ns);
END $$;

-- Deletes the watches of clients that are gone, except those of p_except: the lock that this very connection
-- has would count as free.
CREATE FUNCTION @S.sweep_watches(p_ns int, p_except uuid) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_watcher uuid;
BEGIN
  FOR v_watcher IN SELECT DISTINCT w.watcher FROM @S.watches w WHERE w.ns = p_ns
      AND w.watcher IS DISTINCT FROM p_except LIMIT 500 LOOP
    IF pg_try_advisory_xact_lock('@S.watches'::regclass::oid::int, hashtext(v_watcher::text)) THEN
      DELETE FROM @S.watches w WHERE w.ns = p_ns AND w.watcher = v_watcher;
    END IF;
  END LOOP;
END $$;

-- Reads one cell.
CREATE FUNCTION @S.cell(p_ns int, p_name text)
RETURNS TABLE (name text, value bytea, version bigint, fence bigint, expires_in bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  v_now bigint := @S.clock();
BEGIN
  RETURN QUERY SELECT c.name, c.value, c.version, c.fence, c.expires - v_now FROM @S.cells c
    WHERE c.ns = p_ns AND c.name = p_name AND @S.lives(c.value, c.expires, v_now);
END $$;

-- Reads a page of the cells after a name, from p_from and below p_before (if given), in the order of their
-- names. Ends early with the row that makes it a mebibyte.
CREATE FUNCTION @S.cells_after(p_ns int, p_after text, p_from text, p_before text, p_limit int)
RETURNS TABLE (name text, value bytea, version bigint, fence bigint, expires_in bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  v_now bigint := @S.clock();
  v_count int := 0;
  v_bytes int := 0;
  c @S.cells;
BEGIN
  -- The loop reads a few rows at a time, so it may end anywhere.
  FOR c IN SELECT x.* FROM @S.cells x WHERE x.ns = p_ns AND x.name > p_after COLLATE "C"
      AND x.name >= p_from COLLATE "C" ORDER BY x.name LOOP
    EXIT WHEN c.name >= p_before COLLATE "C" OR v_count >= p_limit OR v_bytes >= 1048576;
    CONTINUE WHEN NOT @S.lives(c.value, c.expires, v_now);
    v_count := v_count + 1;
    v_bytes := v_bytes + length(c.value);
    name := c.name;
    value := c.value;
    version := c.version;
    fence := c.fence;
    expires_in := c.expires - v_now;
    RETURN NEXT;
  END LOOP;
END $$;
