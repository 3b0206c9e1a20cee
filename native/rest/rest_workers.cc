#include "native/rest/rest_workers.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "native/base/cancellation.h"
#include "native/base/clock.h"
#include "native/base/share_scope.h"
#include "native/base/trace_context.h"
#include "native/inference/run_samples.h"
#include "native/servable/answer_requests.h"
#include "native/servable/batch_queue.h"

namespace millpond::rest {

// A request from Submit to its end.
struct Job {
  Job(uint64_t new_id, RestRequest taken, servable::Admission::Ticket its_ticket, bool is_batched,
      const RestWorkersOptions& options)
      : id(new_id),
        request(std::move(taken)),
        batch_key(is_batched ? BatchKeyOf(request) : servable::kNoBatchKey),
        ticket(std::move(its_ticket)) {
    run.deadline_ns = request.deadline_ns;
    run.is_cancelled = cancellation.flag();
    run.reply_bytes_max = options.reply_bytes_max;
    run.budget = options.budget.get();
  }

  const uint64_t id;
  const RestRequest request;
  const servable::BatchKey batch_key;
  servable::Admission::Ticket ticket;
  base::Cancellation cancellation;
  tensor::RunContext run;
  servable::AwaitedChange awaited;  // while it waits for a version
};

namespace {

using base::Code;
using base::Status;

// The smallest reply that is compressed. A shorter reply is one packet either way.
constexpr size_t kGzipBytesMin = 1024;

Status CheckIsWanted(const Job& job) {
  if (job.cancellation.is_cancelled()) {
    return {Code::kCancelled, "the request was cancelled before it ran"};
  }
  if (base::MonotonicNs() >= job.run.deadline_ns) {
    return {Code::kDeadlineExceeded, "the request's deadline passed before it ran"};
  }
  return {};
}

Status LookUp(const RestRequest& request, servable::ServingMap* map,
              servable::ServableHandle* handle) {
  const auto choice = inference::ToVersionChoice(request.model, &request.headers);
  auto found = map->LookUp(request.model.name, choice);
  if (!found.ok()) return found.status();
  *handle = std::move(found.value());
  return {};
}

// The time between two checks of the requests that wait for a version. It applies only while
// requests wait.
constexpr std::chrono::milliseconds kAwaitingLook{10};
// The number of requests that may wait for a version. Further requests are answered at once.
constexpr size_t kAwaitingCountMax = 256;

// Sets `*body` to the request's body without its coding: `*inflated` if it has a coding, or else
// the body as received.
Status ReadBody(const RestRequest& request, size_t bytes_max, base::ByteBudget::Share* share,
                std::string* inflated, std::string_view* body) {
  *body = request.body;
  const auto header = request.headers.Find("content-encoding");
  if (!header) return {};
  const auto coding = ParseContentCoding(*header);
  if (!coding.ok()) return coding.status();
  if (coding.value() == ContentCoding::kIdentity) return {};
  MILLPOND_RETURN_IF_ERROR(Inflate(coding.value(), request.body, bytes_max, inflated, share));
  *body = *inflated;
  return {};
}

// True if a list of codings (RFC 9110, 12.5.3) has gzip with a weight other than 0.
bool AcceptsGzip(std::string_view header) {
  const size_t at = header.find("gzip");
  if (at == std::string_view::npos) return false;
  const std::string_view rest = header.substr(at);
  const std::string_view item = rest.substr(0, rest.find(','));
  const size_t weight = item.find("q=0");
  return weight == std::string_view::npos ||
         item.find_first_of("123456789", weight) != std::string_view::npos;
}

// Compresses the reply if the client accepts gzip. A reply that cannot be compressed is sent as it
// is. Fails if the client no longer waits for the reply.
Status CompressReply(const Job& job, EndedRequest* ended) {
  const auto accepted = job.request.headers.Find("accept-encoding");
  if (!accepted || ended->reply.body.size() < kGzipBytesMin || !AcceptsGzip(*accepted)) {
    return {};
  }
  auto compressed = Gzip(ended->reply.body.view(), job.run.reply_limits());
  const Code code = compressed.status().code();
  if (code == Code::kDeadlineExceeded || code == Code::kCancelled) return compressed.status();
  if (!compressed.ok()) return {};
  ended->reply.body = std::move(compressed.value());
  ended->coding = ContentCoding::kGzip;
  return {};
}

Status StoppedMeanwhile() {
  return {Code::kUnavailable,
          "the server is stopping and takes no more requests; use another server"};
}

std::optional<base::TraceContext> FindTraceContext(const RequestHeaders& headers) {
  const auto parent = headers.Find("traceparent");
  auto context = parent ? base::ParseTraceparent(*parent) : std::nullopt;
  if (!context) return {};
  if (const auto state = headers.Find("tracestate")) context->state = *state;
  return context;
}

// Offers the request if its client samples the trace.
void OfferSpan(metrics::SpanBuffer* spans, const Job& job, const EndedRequest& ended,
               const metrics::PhaseTimes& times, int64_t now_ns) {
  auto context = FindTraceContext(job.request.headers);
  if (!context || !context->is_sampled || !spans->Admit(now_ns)) return;
  metrics::RequestSpan span;
  span.context = std::move(*context);
  span.method = job.request.method;
  span.model = job.request.model.name;
  if (ended.reached) span.version = ended.reached->version;
  span.status = ended.status;
  span.received_ns = job.request.received_ns;
  span.times = times;
  span.request_bytes = job.request.body.size();
  span.response_bytes = ended.reply.body.size();
  spans->Put(std::move(span));
}

// The time between two looks at the requests that wait only for their model's share of the workers.
constexpr std::chrono::milliseconds kHeldBackLook{10};

// The bytes that JSON takes for a byte of a tensor, more or less.
constexpr size_t kJsonBytesPerByte = 4;
// The time between two looks at the requests under way, at a stop.
constexpr int64_t kIdlePollNs = 1'000'000;

}  // namespace

struct RestWorkers::State final : servable::WaitingRequests {
  State(servable::ServingMap* serving_map, RestWorkersOptions given)
      : map(serving_map), options(std::move(given)) {
    if (options.statistics == nullptr) {
      options.statistics = std::make_shared<metrics::RequestStatistics>(base::MonotonicNs());
    }
  }
  ~State() override {
    if (descriptor >= 0) close(descriptor);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // servable::WaitingRequests: for the batches of workers, and of threads that answer gRPC. Their
  // calls wait for no lock, except for a request whose version has just gone.
  bool HasFreeThread() const override { return idle_count > options.spare_count; }
  int64_t WaitingPerThread() const override {
    return static_cast<int64_t>(waiting_count) / std::max(options.thread_count, 1);
  }
  std::unique_ptr<servable::WaitingRequest> Take(servable::BatchKey key, size_t bytes_max) override;

  class JobInTurn;

  // The body of a worker thread.
  void Work(size_t worker);
  // Returns the next request for a worker that has answered its last one; null at a stop.
  std::shared_ptr<Job> TakeJob(size_t worker);
  // Returns the oldest request whose model may take a worker.
  std::deque<std::shared_ptr<Job>>::iterator FindRunnable();  // needs `mutex`
  // Returns the models that have their share of the workers: as many as no other model has, but not
  // the last `spare_count` of them.
  std::set<std::string_view> ModelsAtShare() const;  // needs `mutex`
  // Sets `job` aside if the version that it names is awaited, so that no worker waits with it.
  bool TryAwait(const std::shared_ptr<Job>& job, servable::ServableHandle* handle, Status* found);
  // True if `job` waits for no version any longer, whether one has come or not.
  bool HasEndedWaiting(const Job& job, int64_t now_ns) const;  // needs `mutex`
  void TakeDueAwaiting();                                      // needs `mutex`
  bool IsFull(servable::BatchKey key) const;                   // needs `mutex`
  void SetWaitingCount() { waiting_count = waiting.size(); }   // needs `mutex`
  void Post(Job* job, EndedRequest ended);
  Status Refuse(const RestRequest& request, Status status) const;
  void CancelAll();
  bool WaitUntilIdle(int64_t timeout_ns);

  servable::ServingMap* const map;
  RestWorkersOptions options;
  int descriptor = -1;
  std::vector<std::thread> threads;

  EndedRequests ended;
  std::atomic<int64_t> unended_count{0};
  std::atomic<int> idle_count{0};        // workers that wait for a request
  std::atomic<size_t> waiting_count{0};  // of `waiting`

  std::mutex mutex;  // guards all below
  std::condition_variable has_work;
  uint64_t last_id = 0;
  std::deque<std::shared_ptr<Job>> waiting;
  std::vector<std::shared_ptr<Job>> awaiting;  // wait for their model's first version
  std::vector<std::shared_ptr<Job>> running;   // by worker; null: it is idle
  // Includes awaiting and waiting ones, and ended ones that the event loop has not taken yet.
  std::unordered_map<uint64_t, std::shared_ptr<Job>> in_flight;
  bool is_draining = false;  // requests no longer wait for a version
  bool is_closed = false;    // requests are refused
  bool is_stopped = false;   // workers end once nothing waits
  std::optional<bool> has_drained;
};

// A request while a thread answers it: a worker, or one that answers gRPC.
class RestWorkers::State::JobInTurn final : public servable::WaitingRequest {
 public:
  JobInTurn(State* state, std::shared_ptr<Job> job);

  servable::PreparedRun* Prepare() override;
  void Finish() override;

 private:
  Status Decode();
  void End(const Status& status);

  State& state_;
  const std::shared_ptr<Job> job_;
  metrics::PhaseWatch watch_;
  base::ByteBudget::Share decoded_;  // what the request decodes to
  std::string inflated_;             // its body, if it has a coding
  servable::ServableHandle handle_;
  PreparedRest prepared_;
  EndedRequest answer_;
  inference::RunSamples samples_;
};

std::shared_ptr<Job> RestWorkers::State::TakeJob(size_t worker) {
  std::unique_lock<std::mutex> lock(mutex);
  running[worker].reset();
  // Also before each request, so that a server that is always busy still answers the requests that
  // waited.
  TakeDueAwaiting();
  auto next = FindRunnable();
  idle_count.fetch_add(1);
  while (next == waiting.end() && !(is_stopped && waiting.empty())) {
    if (!waiting.empty()) {
      has_work.wait_for(lock, kHeldBackLook);
    } else if (!awaiting.empty()) {
      has_work.wait_for(lock, kAwaitingLook);
    } else {
      has_work.wait(lock);
    }
    TakeDueAwaiting();
    next = FindRunnable();
  }
  idle_count.fetch_sub(1);
  if (next == waiting.end()) return nullptr;
  std::shared_ptr<Job> job = std::move(*next);
  waiting.erase(next);
  SetWaitingCount();
  running[worker] = job;
  // This worker may be busy for long, so another worker watches the awaiting requests meanwhile.
  if (!awaiting.empty()) has_work.notify_one();
  return job;
}

std::deque<std::shared_ptr<Job>>::iterator RestWorkers::State::FindRunnable() {
  const std::set<std::string_view> held_back = ModelsAtShare();
  if (held_back.empty()) return waiting.begin();
  // A client that waits for no answer any more is told at once, and takes no worker's time.
  return std::find_if(waiting.begin(), waiting.end(), [&](const auto& job) {
    return held_back.count(job->request.model.name) == 0 || !CheckIsWanted(*job).ok();
  });
}

std::set<std::string_view> RestWorkers::State::ModelsAtShare() const {
  if (options.spare_count == 0) return {};
  std::map<std::string_view, size_t> counts;
  size_t total = 0;
  for (const std::shared_ptr<Job>& job : running) {
    if (job == nullptr) continue;
    counts[job->request.model.name] += 1;
    total += 1;
  }
  const auto spare_count = static_cast<size_t>(options.spare_count);
  std::set<std::string_view> models;
  for (const auto& [model, count] : counts) {
    const size_t others_left = running.size() - (total - count);
    if (count >= std::max(others_left - std::min(others_left, spare_count), size_t{1})) {
      models.insert(model);
    }
  }
  return models;
}

void RestWorkers::State::Work(size_t worker) {
  // A sandbox may refuse the nice value. The worker then runs at the usual priority.
  if (options.nice != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), options.nice);
  while (const std::shared_ptr<Job> job = TakeJob(worker)) {
    JobInTurn request(this, job);
    servable::AnswerRequests(&request, this);
  }
}

// Takes no request rather than wait for the lock.
std::unique_ptr<servable::WaitingRequest> RestWorkers::State::Take(servable::BatchKey key,
                                                                   size_t bytes_max) {
  if (waiting_count == 0) return nullptr;
  const std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock) return nullptr;
  using JobPointer = std::shared_ptr<Job>;
  struct View {
    static servable::BatchKey Key(const JobPointer& job) { return job->batch_key; }
    static bool IsCompressed(const JobPointer& job) { return job->request.is_compressed(); }
    static size_t MessageBytes(const JobPointer& job) {
      return job->request.body.size() / kJsonBytesPerByte;
    }
  };
  const auto found = servable::FindWaiting<View>(&waiting, key, bytes_max);
  if (found == waiting.end()) return nullptr;
  auto request = std::make_unique<JobInTurn>(this, std::move(*found));
  waiting.erase(found);
  SetWaitingCount();
  return request;
}

bool RestWorkers::State::IsFull(servable::BatchKey key) const {
  return map->batches().IsFull(key, waiting.size(), [&] {
    return std::count_if(waiting.begin(), waiting.end(),
                         [key](const auto& job) { return job->batch_key == key; });
  });
}

bool RestWorkers::State::HasEndedWaiting(const Job& job, int64_t now_ns) const {
  const int64_t end_ns = servable::AwaitEndNs(job.request.received_ns,
                                              options.first_version_wait_ns, job.run.deadline_ns);
  return is_draining || job.cancellation.is_cancelled() || now_ns >= end_ns;
}

void RestWorkers::State::TakeDueAwaiting() {
  if (awaiting.empty()) return;
  const int64_t now_ns = base::MonotonicNs();
  const auto due = std::stable_partition(awaiting.begin(), awaiting.end(), [&](const auto& job) {
    return !job->awaited.HasCome() && !HasEndedWaiting(*job, now_ns);
  });
  waiting.insert(waiting.end(), due, awaiting.end());
  SetWaitingCount();
  awaiting.erase(due, awaiting.end());
  if (waiting.size() > 1) has_work.notify_all();
}

bool RestWorkers::State::TryAwait(const std::shared_ptr<Job>& job, servable::ServableHandle* handle,
                                  Status* found) {
  if (map->Refuses(job->request.model.name)) return false;
  // Looks up again, because a version may have come between the first look-up and the mark. A
  // version that comes after the mark makes the job due as soon as it is set aside.
  job->awaited = map->MarkChange(job->request.model.name);
  *found = LookUp(job->request, map, handle);
  if (found->code() != Code::kUnavailable) return false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (awaiting.size() >= kAwaitingCountMax) return false;
  if (HasEndedWaiting(*job, base::MonotonicNs())) return false;
  awaiting.push_back(job);
  return true;
}

// --- A request while a thread answers it ---

RestWorkers::State::JobInTurn::JobInTurn(State* state, std::shared_ptr<Job> job)
    : state_(*state),
      job_(std::move(job)),
      watch_(job_->request.received_ns),
      decoded_(state_.options.budget.get()) {
  prepared_.run.context = job_->run;
  prepared_.run.watch = &watch_;
}

servable::PreparedRun* RestWorkers::State::JobInTurn::Prepare() {
  watch_.Enter(metrics::Phase::kDecode, base::MonotonicNs());
  Status found = LookUp(job_->request, state_.map, &handle_);
  if (found.code() == Code::kUnavailable && state_.TryAwait(job_, &handle_, &found)) return nullptr;
  if (found.ok()) found = Decode();
  if (found.ok()) return &prepared_.run;
  End(found);
  return nullptr;
}

Status RestWorkers::State::JobInTurn::Decode() {
  MILLPOND_RETURN_IF_ERROR(CheckIsWanted(*job_));
  std::string_view body;
  MILLPOND_RETURN_IF_ERROR(
      ReadBody(job_->request, state_.options.body_bytes_max, &decoded_, &inflated_, &body));
  const base::ShareScope share_scope(&decoded_, job_->run.reply_limits());
  return state_.options.prepare(job_->request, body, *handle_, &prepared_);
}

void RestWorkers::State::JobInTurn::Finish() {
  Status answer = inference::EndRun(&prepared_.run);
  if (answer.ok()) {
    samples_.Keep(prepared_.run, handle_.reservoir(), job_->request.received_ns);
    answer = prepared_.encode(&prepared_.run, &answer_.reply);
  }
  if (answer.ok()) answer = CompressReply(*job_, &answer_);
  End(answer);
}

// The request is recorded, and the version released, before the answer is posted. So a client that
// has its answer finds the request counted.
void RestWorkers::State::JobInTurn::End(const Status& status) {
  // They may lie in the version's memory.
  prepared_ = {};
  answer_.id = job_->id;
  answer_.status = base::WithShortMessage(job_->cancellation.Settle(status, job_->run.deadline_ns));
  if (handle_) answer_.reached = handle_->id();
  const int64_t now_ns = base::MonotonicNs();
  const metrics::PhaseTimes& times = watch_.End(now_ns);
  const RestWorkersOptions& options = state_.options;
  metrics::RequestRecorder& recorder =
      handle_ ? handle_.requests() : options.statistics->Unmatched(job_->request.model.name);
  recorder.Of(job_->request.method).Record(answer_.status.code(), times);
  if (options.spans != nullptr) OfferSpan(options.spans.get(), *job_, answer_, times, now_ns);
  handle_ = {};
  const bool is_answered = answer_.status.ok();
  state_.Post(job_.get(), std::move(answer_));
  if (is_answered) samples_.Give(base::MonotonicNs());
}

void RestWorkers::State::Post(Job* job, EndedRequest answer) {
  job->ticket = {};
  if (ended.Add(std::move(answer))) {
    // The reader takes all ended requests at once, so the eventfd's counter cannot be full.
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(descriptor, &one, sizeof(one));
  }
  unended_count.fetch_sub(1);
}

Status RestWorkers::State::Refuse(const RestRequest& request, Status status) const {
  const int64_t total_ns = base::MonotonicNs() - request.received_ns;
  options.statistics->Unmatched(request.model.name)
      .Of(request.method)
      .Record(status.code(), metrics::PhaseTimes::OfTotal(total_ns));
  return status;
}

void RestWorkers::State::CancelAll() {
  const std::lock_guard<std::mutex> lock(mutex);
  const int64_t now_ns = base::MonotonicNs();
  for (const auto& [id, job] : in_flight) job->cancellation.Cancel(now_ns);
}

bool RestWorkers::State::WaitUntilIdle(int64_t timeout_ns) {
  const int64_t begin_ns = base::MonotonicNs();
  while (unended_count > 0) {
    if (base::MonotonicNs() - begin_ns >= timeout_ns) return false;
    base::SleepNs(kIdlePollNs);
  }
  return true;
}

RestWorkers::RestWorkers(servable::ServingMap* map, RestWorkersOptions options)
    : state_(std::make_shared<State>(map, std::move(options))) {}

RestWorkers::~RestWorkers() { Shutdown(0); }

Status RestWorkers::Start() {
  state_->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (state_->descriptor < 0) {
    return {Code::kResourceExhausted,
            "no descriptor for the answers over HTTP: " + std::generic_category().message(errno) +
                "; raise the process's limit (ulimit -n)"};
  }
  const int worker_count = state_->options.thread_count + state_->options.spare_count;
  state_->running.resize(static_cast<size_t>(worker_count));
  for (int i = 0; i < worker_count; ++i) {
    state_->threads.emplace_back([state = state_, i] { state->Work(static_cast<size_t>(i)); });
    const std::string name = "rest-" + std::to_string(i);
    pthread_setname_np(state_->threads.back().native_handle(), name.c_str());
  }
  return {};
}

int RestWorkers::ended_descriptor() const { return state_->descriptor; }

base::StatusOr<uint64_t> RestWorkers::Submit(RestRequest request) {
  servable::Admission::Ticket ticket;
  if (state_->options.admission != nullptr) {
    auto entered = state_->options.admission->Enter(request.model.name);
    if (!entered.ok()) return state_->Refuse(request, entered.status());
    ticket = std::move(entered.value());
  }
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->is_closed) return state_->Refuse(request, StoppedMeanwhile());
  const size_t waiting_count = state_->waiting.size();
  if (waiting_count >= state_->options.waiting_count_max) {
    return state_->Refuse(request,
                          {Code::kResourceExhausted,
                           std::to_string(waiting_count) + " requests over HTTP wait for one of " +
                               std::to_string(state_->options.thread_count) +
                               " threads (--rest_api_num_threads); try again later"});
  }
  auto job = std::make_shared<Job>(++state_->last_id, std::move(request), std::move(ticket),
                                   !state_->map->batches().is_empty(), state_->options);
  if (state_->IsFull(job->batch_key)) {
    return state_->Refuse(job->request, servable::BatchRegistry::Refusal());
  }
  state_->in_flight.emplace(job->id, job);
  state_->unended_count.fetch_add(1);
  const uint64_t id = job->id;
  state_->waiting.push_back(std::move(job));
  state_->SetWaitingCount();
  state_->has_work.notify_one();
  return id;
}

void RestWorkers::Cancel(uint64_t id) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto found = state_->in_flight.find(id);
  if (found != state_->in_flight.end()) found->second->cancellation.Cancel(base::MonotonicNs());
}

std::vector<EndedRequest> RestWorkers::TakeEnded() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(state_->descriptor, &count, sizeof(count));
  std::vector<EndedRequest> taken = state_->ended.TakeAll();
  const std::lock_guard<std::mutex> lock(state_->mutex);
  for (const EndedRequest& each : taken) state_->in_flight.erase(each.id);
  return taken;
}

std::shared_ptr<servable::WaitingRequests> RestWorkers::waiting_requests() const { return state_; }

void RestWorkers::EndAwaiting() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->is_draining = true;
  state_->has_work.notify_all();
}

bool RestWorkers::Shutdown(int64_t drain_ns) {
  if (state_->has_drained) return *state_->has_drained;
  EndAwaiting();
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->is_closed = true;
  }
  state_->has_drained = state_->WaitUntilIdle(drain_ns);
  state_->CancelAll();
  const bool has_ended = state_->WaitUntilIdle(kCutShortNs);
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->is_stopped = true;
    state_->has_work.notify_all();
  }
  for (std::thread& thread : state_->threads) has_ended ? thread.join() : thread.detach();
  return *state_->has_drained;
}

}  // namespace millpond::rest
