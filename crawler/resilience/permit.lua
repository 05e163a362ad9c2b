-- Permits: asks for requests to a domain and reports on them, each in one atomic step.
-- `domain_state.py` is the twin of this script, step by step.
--
-- circuit:$domain
--   A hash with all that the fleet shares about a domain. Times are Unix times by the clock of
--   this server.
--     seen                  last access; shows when the clock was set back
--     tat                   earliest time for which the next request may be reserved
--     cursor                the next turn for a holder that was refused
--     busy                  counts holders that were refused because all places were taken
--     last, last_n, step    holder, number and spacing of the latest reservations in a row
--     job, job_interval, job_tat
--                           the job whose limit the latest reservations were made under, that
--                           limit, and when the first of them began
--     interval, at_a_time   the last rule that was asked with
--     held:$holder          "count expiry": requests in flight and the end of the lease on them
--     state                 CLOSED (or absent), OPEN or HALF_OPEN
--     failures, last_block  blocks in a row, and the kind of the last
--     opened_at, open_until, open_for
--                           when the circuit opened, until when, and for how many seconds
--     probe, probe_until    holder of the only probe, and the end of the lease on it
--     slowed, baseline      factor of the adaptive slowdown, and moving average of latencies
--     crawl_delay           seconds between requests that robots.txt asks for
--     not_before, because   end of a Retry-After, or of another pause, and the reason for that
--
-- permit-epoch
--   When this database was first asked for a permit. Right after that, requests may be in flight
--   that were reserved before Redis was emptied.
--
-- ARGV: verb, holder, requests of the holder in flight, now (empty: the server's clock); then
--   ask     interval, at_a_time, wish, ahead, whether places are taken, job
--   report  interval, fail_max, good (1, 0 or empty), block, latency, retry_after, crawl_delay,
--           ended, unused, again, because
--   renew, reset, forget (`holder` is the one to forget)
-- Flags are 1 or 0. Names in capitals are the constants of `permit.py`, put before this text.

local key, epoch_key = KEYS[1], KEYS[2]
local verb, holder, held, given = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local now = tonumber(given)
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local fields, puts, drops = {}, {}, {}
local flat = redis.call('HGETALL', key)
for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
local known = #flat > 0

local function text(number) return string.format('%.17g', number) end
local function number(name, default) return tonumber(fields[name]) or default end
local function put(name, value)
  value = type(value) == 'number' and text(value) or value
  fields[name] = value
  puts[name], drops[name] = value, nil
end
local function drop(...)
  for _, name in ipairs({...}) do
    if fields[name] then
      fields[name] = nil
      puts[name], drops[name] = nil, true
    end
  end
end

local leases = {}
for name, value in pairs(fields) do
  local who = string.match(name, '^held:(.*)$')
  if who then
    local count, expiry = string.match(value, '^(%S+) (%S+)$')
    leases[who] = {tonumber(count), tonumber(expiry)}
  end
end

-- If the clock was set back, move all times with it.
local back = number('seen', now) - now
if back > 0 then
  local times = {'tat', 'cursor', 'job_tat', 'opened_at', 'open_until', 'probe_until',
    'not_before'}
  for _, name in ipairs(times) do
    if fields[name] then put(name, number(name) - back) end
  end
  for who, lease in pairs(leases) do
    lease[2] = lease[2] - back
    put('held:' .. who, lease[1] .. ' ' .. text(lease[2]))
  end
end
for who, lease in pairs(leases) do
  if lease[2] <= now then
    leases[who] = nil
    drop('held:' .. who)
  end
end

local function hold(count)
  if count > 0 then
    put('held:' .. holder, count .. ' ' .. text(now + LEASE_S))
  else
    drop('held:' .. holder)
  end
end

local function write()
  put('seen', now)
  local gone, set = {}, {}
  for name in pairs(drops) do gone[#gone + 1] = name end
  for name, value in pairs(puts) do
    set[#set + 1] = name
    set[#set + 1] = value
  end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  redis.call('HSET', key, unpack(set))
  local keep = KEEP_S + math.max(0, number('tat', now) - now)
  redis.call('PEXPIRE', key, string.format('%.0f', keep * 1000))
end

local function spacing(interval)
  local seconds = math.max(interval, number('crawl_delay', 0)) / HEADROOM
  if interval > 0 then seconds = seconds * number('slowed', 1) end
  return seconds
end

-- When this database was first asked, as far as is known.
local function epoch()
  local began = tonumber(redis.call('GET', epoch_key))
  if not began or began > now then
    began = now
    redis.call('SET', epoch_key, text(now))
  end
  return began
end

-- If a job has raised its own limit, drops its latest reservations under the lower one.
local function raise_limit(job, interval, step)
  if job == '' or fields.job ~= job or interval >= number('job_interval', 0) then return end
  local begun = math.max(number('job_tat', 0), now + NOTICE_S + step)
  put('tat', math.min(number('tat', 0), begun))
  put('job_interval', interval)
  put('last_n', 0)
end

local function ask(interval, at_a_time, wish, ahead, takes, job)
  local starts, step = {}, spacing(interval)
  local function answer(why, wait)
    hold(takes and held + #starts or held)
    put('interval', interval)
    put('at_a_time', at_a_time)
    write()
    local reply = {text(now), why, text(wait), text(step)}
    for i = 1, #starts do reply[i + 4] = text(starts[i]) end
    return reply
  end

  local began = epoch()
  local state, probing = fields.state or 'CLOSED', false
  if state == 'OPEN' then
    if now < number('open_until', 0) then return answer('open', number('open_until') - now) end
    probing = true
  elseif state == 'HALF_OPEN' then
    local alive = fields.probe and number('probe_until', 0) > now
    -- A request that takes the place of the probe belongs to it: a redirect.
    if alive and (takes or fields.probe ~= holder) then return answer('open', PROBE_WAIT_S) end
    probing = true
  end
  if now < number('not_before', 0) then return answer('retry after', number('not_before') - now) end

  local most, why = wish, ''
  if probing and most > 1 then most, why = 1, 'open' end
  if at_a_time > 0 and takes then
    local free = at_a_time - held
    for who, lease in pairs(leases) do
      if who ~= holder then free = free - lease[1] end
    end
    if free < most then most, why = math.max(free, 0), 'at a time' end
  end

  raise_limit(job, interval, step)
  local tat, just_begun = number('tat'), false
  if step > 0 then
    if not tat then
      -- Reservations from before Redis was emptied end by then.
      tat = began + AHEAD_S + step
      just_begun = tat > now
    end
    local batch = math.max(1, math.floor(BATCH_S / step))
    if most > batch then most, why = batch, 'rate' end
    for _ = 1, most do
      local start = math.max(now, tat)
      if start - now > ahead then
        why = just_begun and 'just begun' or 'rate'
        break
      end
      starts[#starts + 1] = start - now
      tat = start + step
    end
    if #starts > 0 then
      local same = fields.last == holder and number('step') == step
      put('last_n', (same and number('last_n') or 0) + #starts)
      put('last', holder)
      put('step', step)
      put('tat', tat)
      if fields.job ~= job or number('job_interval', 0) ~= interval then
        put('job', job)
        put('job_interval', interval)
        put('job_tat', now + starts[1])
      end
    end
  else
    for i = 1, most do starts[i] = 0 end
  end

  if probing and #starts > 0 then
    put('state', 'HALF_OPEN')
    put('probe', holder)
    put('probe_until', now + LEASE_S)
    return answer('probe', wish > 1 and PROBE_WAIT_S or 0)
  end
  if #starts == wish then return answer('', 0) end
  if why == 'open' then return answer(why, PROBE_WAIT_S) end
  if why == 'at a time' then
    local busy = number('busy', 0)
    put('busy', (busy + 1) % BUSY_STEPS)
    return answer(why, BUSY_S * (busy + 1))
  end
  -- Each refused holder gets its own turn, so that they do not all come for one free request.
  local free = math.max(now, tat - ahead)
  local wanted = math.min(wish - #starts, math.max(1, math.floor(BATCH_S / step)))
  local last, told = free + SPREAD_S, number('cursor', 0)
  if told > last then told = 0 end -- told before the rate was raised
  local turn = math.max(told, free) + math.min((wanted - 1) * step, ahead / 2)
  if turn > last then return answer(why, last - now) end
  put('cursor', math.min(turn + step, last))
  return answer(why, turn - now)
end

local function drop_circuit()
  drop('state', 'failures', 'last_block', 'opened_at', 'open_until', 'open_for')
  drop('probe', 'probe_until')
end

local function open(seconds)
  put('state', 'OPEN')
  put('opened_at', now)
  put('open_until', now + seconds)
  put('open_for', seconds)
  drop('probe', 'probe_until')
end

-- Moves the circuit. Says whether the report counts: one that comes after the circuit has opened
-- says nothing new.
local function judge(fail_max, good, block, ended, again)
  local state = fields.state or 'CLOSED'
  local failures = number('failures', 0)
  if state == 'CLOSED' then
    if block ~= '' and again then return false end
    if block ~= '' then
      put('failures', failures + 1)
      put('last_block', block)
      if failures + 1 >= fail_max then open(OPEN_S) end
    elseif good == '1' then
      put('failures', 0)
    end
    return true
  end
  if state ~= 'HALF_OPEN' or fields.probe ~= holder then return false end
  if block ~= '' or good == '0' then
    put('failures', failures + 1)
    if block ~= '' then put('last_block', block) end
    local before = number('open_for', OPEN_S)
    open(again and before or math.min(before * 2, MAX_OPEN_S))
  elseif good == '1' then
    drop_circuit()
  elseif ended then
    drop('probe', 'probe_until')
  end
  return true
end

local function adapt(good, block, latency)
  local slowed, baseline = number('slowed', 1), number('baseline', 0)
  if block ~= '' or good == '0' then
    slowed = math.min(MAX_SLOWDOWN, slowed * SLOWDOWN_PER_BLOCK)
  elseif good == '1' then
    if baseline > 0 and latency > math.max(SLOW_S, SLOW_TIMES * baseline) then
      slowed = math.min(MAX_SLOWDOWN, slowed * SLOWDOWN_PER_SLOW_ANSWER)
    else
      slowed = math.max(1, slowed * RECOVERY)
    end
    if latency > 0 then
      put('baseline', baseline > 0 and baseline + BASELINE_SHARE * (latency - baseline) or latency)
    end
  end
  put('slowed', slowed)
end

local function report(interval, fail_max, good, block, latency, retry_after, crawl_delay, ended,
    unused, again, because)
  hold(held)
  if 0 < unused and unused <= number('last_n', 0) and fields.last == holder then
    local tat = number('tat', 0) - unused * number('step', 0)
    if tat >= now then
      put('tat', tat)
      put('last_n', number('last_n') - unused)
    end
  end
  if judge(fail_max, good, block, ended, again) and interval > 0 then
    adapt(good, block, latency)
  end
  if retry_after > 0 and now + retry_after > number('not_before', 0) then
    put('not_before', now + retry_after)
    if because ~= '' then put('because', because) else drop('because') end
  end
  if crawl_delay > 0 then
    put('crawl_delay', crawl_delay)
  elseif crawl_delay < 0 then
    drop('crawl_delay')
  end
  write()
  return 1
end

-- Forgets what was learned, but neither requests in flight nor reservations: limits still hold.
local function reset()
  if not known then return 0 end
  drop_circuit()
  drop('slowed', 'baseline', 'crawl_delay', 'not_before', 'because')
  if next(leases) == nil and number('tat', 0) <= now then redis.call('DEL', key) else write() end
  return 1
end

if verb == 'ask' then
  local interval, at_a_time = tonumber(ARGV[5]), tonumber(ARGV[6])
  local wish, ahead = tonumber(ARGV[7]), tonumber(ARGV[8])
  return ask(interval, at_a_time, wish, ahead, ARGV[9] == '1', ARGV[10])
elseif verb == 'report' then
  return report(tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9]),
    tonumber(ARGV[10]), tonumber(ARGV[11]), ARGV[12] == '1', tonumber(ARGV[13]), ARGV[14] == '1',
    ARGV[15])
elseif verb == 'reset' then
  return reset()
elseif verb == 'forget' then
  if known then
    hold(0)
    if fields.probe == holder then drop('probe', 'probe_until') end
    write()
  end
elseif held > 0 then -- renew, also where Redis was emptied meanwhile
  hold(held)
  if fields.probe == holder then put('probe_until', now + LEASE_S) end
  write()
end
return 1
