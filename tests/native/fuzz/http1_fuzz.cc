#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/rest/rest_service.h"
#include "native/rpc/http1_session.h"
#include "native/rpc/http_stream.h"
#include "native/rpc/output_queue.h"
#include "native/rpc/stream_table.h"
#include "native/servable/answer_requests.h"
#include "native/servable/serving_map.h"
#include "native/tensor/dtype.h"
#include "tests/native/fuzz/fuzz_target.h"
#include "tests/native/fuzz/http1_answers.h"
#include "tests/native/no_session_events.h"
#include "tests/native/opaque_tensors.h"
#include "tests/native/scripted_servable.h"
#include "tests/native/serving_maps.h"

namespace millpond::fuzz {
namespace {

// Shows the streams that a session begins, and which of them have come as a whole.
class WatchedStreams final : public rpc::StreamEvents {
 public:
  explicit WatchedStreams(rpc::StreamTable* table) : table_(*table) {}

  void OnBegin(int32_t stream) override {
    FUZZ_CHECK(stream == static_cast<int32_t>(requests_.size()) + 1, std::to_string(stream));
    FUZZ_CHECK(requests_.empty() || requests_.back().is_closed, "two streams are open");
    requests_.emplace_back();
    table_.OnBegin(stream);
  }
  void OnHeader(int32_t stream, std::string_view name, std::string_view value) override {
    if (name == ":method") requests_.back().method = value;
    if (name == ":path") requests_.back().target = value;
    table_.OnHeader(stream, name, value);
  }
  void OnHeadersEnd(int32_t stream) override { table_.OnHeadersEnd(stream); }
  void OnData(int32_t stream, std::string_view data) override { table_.OnData(stream, data); }
  void OnRequestEnd(int32_t stream) override {
    requests_.back().has_come = true;
    table_.OnRequestEnd(stream);
  }
  void OnDataSent(int32_t stream) override { table_.OnDataSent(stream); }
  void OnStreamClosed(int32_t stream) override {
    requests_.back().is_closed = true;
    table_.OnStreamClosed(stream);
  }

  const std::vector<SeenRequest>& requests() const { return requests_; }

 private:
  rpc::StreamTable& table_;
  std::vector<SeenRequest> requests_;
};

// The client, who reads all at once.
struct Client {
  rpc::Transport::Result Write(const iovec* pieces, size_t count) {
    rpc::Transport::Result result;
    for (size_t i = 0; i < count; ++i) {
      received.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
      result.bytes += pieces[i].iov_len;
    }
    return result;
  }

  std::string received;
};

struct NothingWaits final : servable::WaitingRequests {
  bool HasFreeThread() const override { return true; }
  int64_t WaitingPerThread() const override { return 0; }
  std::unique_ptr<servable::WaitingRequest> Take(servable::BatchKey, size_t) override {
    return nullptr;
  }
};

// Model "m", version 7, which answers with the integers that it gets, and all that a server has for
// its connections over HTTP.
class Service {
 public:
  Service() {
    const tensor::TensorSpec spec{"x", "x:0", tensor::dtype::kInt64, true, {-1}};
    const tensor::Signature signature{"serving_default", "", {spec}, {spec}};
    auto servable = std::make_unique<testing::FakeServable>(
        servable::ServableId{"m", 7}, std::vector<tensor::Signature>{signature},
        [](const testing::FakeRun& run) { return testing::EchoInputs(run); });
    const base::Status published = servable::PublishHighest(
        map_, std::make_shared<servable::ServableEntry>(std::move(servable)));
    FUZZ_CHECK(published.ok(), published.message());
    shared_->calls.budget = budget_;
    shared_->calls.admission = admission_;
    shared_->calls.batches = &map_.batches();
  }

  rpc::HttpService* http() { return &http_; }
  rpc::ServerShared* shared() { return shared_.get(); }
  // Fails unless everything that clients took has come back.
  void CheckIsReturned() const {
    const int64_t live_count = shared_->call_counts.live_count;
    const int64_t open_bytes = shared_->call_counts.open_bytes;
    FUZZ_CHECK(live_count == 0, std::to_string(live_count) + " calls");
    FUZZ_CHECK(open_bytes == 0, std::to_string(open_bytes) + " bytes of open calls");
    FUZZ_CHECK(budget_->in_use_bytes() == 0, std::to_string(budget_->in_use_bytes()) + " bytes");
    FUZZ_CHECK(admission_->in_flight_count() == 0, "in flight");
  }

 private:
  servable::ServingMap map_;
  const std::shared_ptr<metrics::RequestStatistics> statistics_ =
      std::make_shared<metrics::RequestStatistics>(/*now_ns=*/0);
  const std::shared_ptr<base::ByteBudget> budget_ = std::make_shared<base::ByteBudget>();
  const std::shared_ptr<servable::Admission> admission_ = std::make_shared<servable::Admission>();
  const std::shared_ptr<rpc::ServerShared> shared_ = std::make_shared<rpc::ServerShared>();
  const rpc::HttpDocuments documents_;
  rest::RestService runs_{{&map_, statistics_.get(), nullptr}, &documents_, 1 << 20};
  rpc::HttpService http_{rpc::HttpOptions(), &runs_};
};

// A connection without a socket: what rpc::Connection does for its session and its streams, on one
// thread.
class Conversation final : public rpc::CallCarrier {
 public:
  Conversation(Service* service, const rpc::Http1Limits& limits)
      : service_(*service),
        protocol_(service->http(), limits),
        context_{service->shared(), this, 1},
        life_(service->shared()->limits, 1),
        table_(protocol_, &context_, &life_),
        streams_(&table_),
        // Not the protocol's, which would begin HTTP/2 for its preface.
        session_(std::make_unique<rpc::Http1Session>(limits, service->shared()->calls.budget.get(),
                                                     &streams_, &events_)) {
    context_.session = session_.get();
    context_.space = &space_;
  }

  // Sends `input`, cut before each of `cuts`. With `is_late`, what Python answers is answered
  // only after the next part was sent.
  void Talk(std::string_view input, const std::vector<size_t>& cuts, bool is_late) {
    size_t begin = 0;
    for (size_t i = 0; i <= cuts.size(); ++i) {
      const size_t end = i < cuts.size() ? cuts[i] : input.size();
      Receive(input.substr(begin, end - begin));
      if (!is_late || i == cuts.size()) AnswerAll();
      begin = end;
    }
  }
  // The client leaves.
  void End() {
    table_.CloseAll();
    (void)table_.TakeClosed();
  }
  bool is_over() const { return session_->is_over(); }
  const std::vector<SeenRequest>& requests() const { return streams_.requests(); }
  const std::string& received() const { return client_.received; }

  // --- for calls ---

  const std::string& peer() const override { return address_; }
  const std::string& local_address() const override { return address_; }
  std::vector<std::string> ClientNames() override { return {}; }
  bool TakeMessage(int32_t, base::ChargedText*, bool*) override { return false; }
  bool Send(int32_t, std::shared_ptr<rpc::OutMessage>, size_t) override { return true; }
  void WriteAnswers() override { Flush(); }
  void Answer(int32_t stream, rpc::CallEnd end) override {
    rpc::Stream* const found = table_.FindUnanswered(stream);
    if (found == nullptr) return;
    const bool is_held = end.is_held;
    found->Answer(std::move(end));
    if (!is_held) Flush();
  }

 private:
  // Bytes that the session does not take wait here, as in a socket.
  void Receive(std::string_view bytes) {
    socket_.append(bytes);
    while (session_->is_over() || session_->wants_input()) {
      if (socket_.empty() && session_->waiting_bytes() == 0) break;
      size_t room = 0;
      char* const to = space_.Reserve(&room);
      size_t size = 0;
      if (session_->waiting_bytes() > 0) {
        size = session_->TakeWaiting(to, room);
      } else {
        size = std::min(room, socket_.size());
        std::memcpy(to, socket_.data(), size);
        socket_.erase(0, size);
      }
      if (!session_->is_over()) {
        FUZZ_CHECK(session_->Feed({to, size}), "the session ends the connection");
      }
      space_.Use(size);
      Flush();
      HandleDue();
    }
  }

  void HandleDue() {
    for (const auto& call : std::exchange(context_.due, {})) {
      if (!call->Arrive()) continue;
      call->PeekQueueKeys();
      call->Read();
      rpc::CallBeingAnswered request(call);
      NothingWaits nothing;
      servable::AnswerRequests(&request, &nothing);
    }
    (void)table_.TakeClosed();
  }

  // Answers for Python, with the request's own line.
  void AnswerAll() {
    bool is_any = true;
    while (is_any) {
      is_any = false;
      for (rpc::RareCallQueue* const queue :
           {service_.http()->probes(), service_.http()->pages()}) {
        while (const auto call = queue->Take(0)) {
          is_any = true;
          (void)call->ReplyHttp(200, "", LineOf(call->http_method(), call->target()));
        }
      }
      (void)table_.TakeClosed();
      Receive("");
    }
  }

  void Flush() {
    rpc::Session::Output produced = rpc::Session::Output::kMore;
    while (produced == rpc::Session::Output::kMore) produced = session_->Produce(&output_);
    FUZZ_CHECK(produced == rpc::Session::Output::kNothing, "the session is broken");
    (void)output_.WriteTo(&client_);
    table_.CountUnread();
  }

  const std::string address_ = "127.0.0.1";
  Service& service_;
  const rpc::HttpProtocol protocol_;
  rpc::ReceiveSpace space_;
  rpc::StreamContext context_;
  rpc::ConnectionLife life_;
  rpc::StreamTable table_;
  WatchedStreams streams_;
  testing::NoSessionEvents events_;
  const std::unique_ptr<rpc::Session> session_;
  rpc::OutputQueue output_;
  Client client_;
  std::string socket_;
};

// Returns the answers to `input`. Each fits its request, and everything is returned afterwards.
std::vector<SeenAnswer> AnswersTo(std::string_view input, const std::vector<size_t>& cuts,
                                  bool is_late, const rpc::Http1Limits& limits) {
  static auto* const service = new Service;
  std::vector<SeenAnswer> answers;
  {
    const auto conversation = std::make_shared<Conversation>(service, limits);
    conversation->Talk(input, cuts, is_late);
    answers = ReadAnswers(conversation->received(), conversation->requests());
    CheckAnswers(answers, conversation->requests(), conversation->is_over());
    conversation->End();
  }
  service->CheckIsReturned();
  return answers;
}

std::vector<size_t> EveryByte(size_t size) {
  std::vector<size_t> cuts;
  for (size_t cut = 1; cut < size; ++cut) cuts.push_back(cut);
  return cuts;
}

}  // namespace

// Each request of a client over HTTP/1.1 has at most one answer, of its own and in order, and each
// that has come as a whole has one. The answers are the same wherever the
// network cuts the bytes, and however late Python answers. When the client leaves, no byte of the
// budget and no call is left.
Verdict Run(std::string_view input) {
  const rpc::Http1Limits limits;
  const std::vector<SeenAnswer> whole = AnswersTo(input, {}, false, limits);
  const std::vector<size_t> every_byte = EveryByte(input.size());
  FUZZ_CHECK(AnswersTo(input, every_byte, false, limits) == whole, "byte by byte");
  FUZZ_CHECK(AnswersTo(input, every_byte, true, limits) == whole, "late, byte by byte");
  size_t sum = 0;
  for (const char byte : input) sum = sum * 31 + static_cast<unsigned char>(byte);
  const size_t cut = input.empty() ? 0 : sum % input.size();
  FUZZ_CHECK(AnswersTo(input, {cut}, true, limits) == whole, "cut at " + std::to_string(cut));
  rpc::Http1Limits narrow;
  narrow.head_bytes_max = 100;
  narrow.field_count_max = 3;
  narrow.requests_per_connection = 2;
  narrow.free_bytes = 0;
  (void)AnswersTo(input, {}, false, narrow);
  (void)AnswersTo(input, every_byte, true, narrow);
  const bool is_taken = !whole.empty() && whole.back().status < 400;
  return is_taken ? Verdict::kTaken : Verdict::kRefused;
}

}  // namespace millpond::fuzz
