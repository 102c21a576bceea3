-- The end of every long path: writes the top if it changed.
if top ~= was_top or tombs ~= was_tombs or grace ~= was_grace then
  local text = fmt('%.0f', top)
  if tombs > now or grace > now then text = fmt('%.0f %.0f %.0f', top, tombs, grace) end
  if linger == 0 then
    call('SET', KEYS[1], text)
  else
    call('SET', KEYS[1], text, 'PX', linger)
  end
end
