-- wrk script. Arguments: the file with the body, then name and value of each header.
-- Prints the outcome as one line of JSON, because wrk's own text rounds the latencies.

function init(args)
    local file = assert(io.open(args[1], "rb"))
    wrk.method = "POST"
    wrk.body = file:read("*a")
    file:close()
    for index = 2, #args, 2 do
        wrk.headers[args[index]] = args[index + 1]
    end
end

function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '{"requests":%d,"duration_us":%d,"p50_us":%.1f,"p99_us":%.1f,"max_us":%.1f,' ..
        '"failed_status":%d,"failed_socket":%d,"timed_out":%d}\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency.max,
        errors.status, errors.connect + errors.read + errors.write, errors.timeout))
end
