-- raise_fences: raises the sequence that all fences and arrivals come from. Replies, by kind:
--
-- d  done: every later number is above p_to
-- n  not above: place = the largest number so far; nothing was changed
CREATE FUNCTION @S.raise_fences(p_to bigint) RETURNS SETOF @S.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  a @S.answer;
BEGIN
  PERFORM pg_advisory_xact_lock(7236847, 1);
  SELECT 'n', CASE WHEN n.is_called THEN n.last_value ELSE 0 END INTO a.kind, a.place
    FROM @S.numbers n;
  IF p_to > a.place THEN
    -- Other clients draw numbers meanwhile without the lock, so it is raised by more than they can draw.
    PERFORM setval('@S.numbers', greatest(p_to, a.place + 2000000));
    -- A crash must not lose it, even where commits do not wait for the disk.
    IF current_setting('synchronous_commit') = 'off' THEN
      PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
    a.kind := 'd';
  END IF;
  RETURN NEXT a;
END $$;
