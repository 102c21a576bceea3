-- Cells: small versioned values, written by compare-and-set.

-- Writes a cell, or removes it if there is no p_value, on a condition: any, absent, version or fence.
-- Replies, by kind: d done, with the new version; r refused, with the present cell if there is one; s stale,
-- with the larger fence that the cell was written under.
CREATE FUNCTION @S.put(p_ns int, p_name text, p_expect text, p_given bigint, p_value bytea,
  p_ttl bigint, OUT kind text, OUT value bytea, OUT version bigint, OUT fence bigint,
  OUT expires_in bigint) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  c @S.cells;
  v_now bigint;
  v_there bool;
BEGIN
  -- Locks the row, which is inserted first if there is none.
  INSERT INTO @S.cells AS x (ns, name, version) VALUES (p_ns, p_name, 0)
    ON CONFLICT (ns, name) DO UPDATE SET ns = x.ns;
  SELECT * INTO STRICT c FROM @S.cells x WHERE x.ns = p_ns AND x.name = p_name;
  v_now := @S.clock();
  v_there := c.value IS NOT NULL AND (c.expires IS NULL OR c.expires > v_now);
  IF p_expect = 'fence' AND c.fence > p_given THEN
    kind := 's';
    fence := c.fence;
    RETURN;
  END IF;
  IF (p_expect = 'absent' AND v_there)
    OR (p_expect = 'version' AND NOT (v_there AND c.version = p_given)) THEN
    kind := 'r';
    IF v_there THEN
      value := c.value;
      version := c.version;
      fence := c.fence;
      expires_in := c.expires - v_now;
    ELSIF c.version = 0 THEN
      DELETE FROM @S.cells x WHERE x.ns = p_ns AND x.name = p_name;
    END IF;
    RETURN;
  END IF;
  kind := 'd';
  version := @S.mint();
  IF p_expect = 'fence' THEN c.fence := p_given; END IF;
  IF p_value IS NULL AND c.fence IS NULL THEN
    DELETE FROM @S.cells x WHERE x.ns = p_ns AND x.name = p_name;
  ELSE
    c.version := version;
    UPDATE @S.cells x SET value = p_value, version = c.version, fence = c.fence,
        expires = v_now + p_ttl
      WHERE x.ns = p_ns AND x.name = p_name;
  END IF;
END $$;

-- Reads the cell p_from (p_only), or a page of the cells after that name, in the order of their names.
CREATE FUNCTION @S.cells_after(p_ns int, p_from text, p_only bool, p_limit int)
RETURNS TABLE (name text, value bytea, version bigint, fence bigint, expires_in bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  v_now bigint := @S.clock();
BEGIN
  RETURN QUERY SELECT c.name, c.value, c.version, c.fence, c.expires - v_now FROM @S.cells c
    WHERE c.ns = p_ns AND c.value IS NOT NULL AND (c.expires IS NULL OR c.expires > v_now)
      AND CASE WHEN p_only THEN c.name = p_from ELSE c.name > p_from COLLATE "C" END
    ORDER BY c.name LIMIT p_limit;
END $$;
