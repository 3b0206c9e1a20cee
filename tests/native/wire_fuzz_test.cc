// Clients that talk nonsense: the conversations of wire_conversations.h, changed at random. After
// each of them a healthy client is still answered, and at the end no call, byte or connection is
// left.
//
// A failure names its seed. MILLPOND_WIRE_FUZZ_SEED=S MILLPOND_WIRE_FUZZ_COUNT=1 repeats it, and
// MILLPOND_WIRE_FUZZ_SECONDS=600 goes on for so long from any seed.

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/clock.h"
#include "tests/native/raw_http2.h"
#include "tests/native/wire_conversations.h"
#include "tests/native/wire_server.h"

// A function of the sanitizers, null without one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace millpond::rpc {
namespace {

using testing::BigEndian;
using testing::Conversation;
using testing::FrameBytes;
using testing::GrpcMessage;
using testing::HeadersOf;
using testing::LastData;
using testing::RawHttp2;

constexpr uint64_t kFirstSeed = 1;
constexpr int64_t kUsualCount = 300;
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr size_t kFrameHeaderBytes = 9;

std::atomic<uint64_t> current_seed{0};

void PrintSeed() {
  std::fprintf(stderr, "MILLPOND_WIRE_FUZZ_SEED=%lu\n",
               static_cast<unsigned long>(current_seed.load()));
}

// Without a sanitizer, an abort is how the server's threads end the process.
void PrintSeedAndAbort(int signal) {
  PrintSeed();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Numbers from a seed, the same on every machine.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  // From 0 to `end` - 1; 0 if `end` is 0.
  size_t Below(size_t end) { return end == 0 ? 0 : engine_() % end; }
  bool OneIn(size_t count) { return Below(count) == 0; }

 private:
  std::mt19937_64 engine_;
};

// --- Changes to a conversation ---

void ChangeHeader(std::string* frame, Dice* dice) {
  if (frame->size() < kFrameHeaderBytes) return;
  switch (dice->Below(4)) {
    case 0: {  // the length
      const size_t at = dice->OneIn(4) ? dice->Below(3) : 2;
      (*frame)[at] = static_cast<char>((*frame)[at] + 1 - 2 * static_cast<int>(dice->Below(2)));
      break;
    }
    case 1:
      (*frame)[3] = static_cast<char>(dice->Below(11));  // the type
      break;
    case 2:
      (*frame)[4] = static_cast<char>((*frame)[4] ^ (1 << dice->Below(8)));  // a flag
      break;
    default:
      (*frame)[8] = static_cast<char>(dice->Below(16));  // the stream
  }
}

void PutNumber(std::string* frame, Dice* dice) {
  constexpr uint32_t kNumbers[] = {
      0, 1, 4, 16'383, 16'384, 65'535, 65'536, 0x7fffffffU, 0x80000000U, 0xffffffffU, 0x00ffffffU};
  if (frame->size() < 4) return;
  const std::string number = BigEndian(kNumbers[dice->Below(std::size(kNumbers))]);
  frame->replace(dice->Below(frame->size() - 3), 4, number);
}

// Makes the length in a frame's header that of the frame again.
void MendLength(std::string* frame) {
  if (frame->size() < kFrameHeaderBytes) return;
  frame->replace(0, 3,
                 BigEndian(static_cast<uint32_t>(frame->size() - kFrameHeaderBytes)).substr(1));
}

void ChangeFrame(std::string* frame, Dice* dice) {
  const size_t at = dice->Below(frame->size());
  switch (dice->Below(6)) {
    case 0:
      if (!frame->empty()) (*frame)[at] = static_cast<char>((*frame)[at] ^ (1 << dice->Below(8)));
      break;
    case 1:
      if (!frame->empty()) (*frame)[at] = static_cast<char>(dice->Below(256));
      break;
    case 2:
      PutNumber(frame, dice);
      break;
    case 3:
      frame->resize(at);
      if (dice->OneIn(2)) MendLength(frame);
      break;
    case 4:
      frame->insert(at, std::string(1 + dice->Below(20), static_cast<char>(dice->Below(256))));
      if (dice->OneIn(2)) MendLength(frame);
      break;
    default:
      ChangeHeader(frame, dice);
  }
}

void Change(Conversation* frames, const std::vector<Conversation>& corpus, Dice* dice) {
  const Conversation& other = corpus[dice->Below(corpus.size())];
  const size_t at = dice->Below(frames->size());
  const auto place = frames->begin() + static_cast<ptrdiff_t>(at);
  switch (dice->Below(8)) {
    case 0:
      if (frames->size() > 1) frames->erase(place);
      break;
    case 1:
      frames->insert(place, (*frames)[at]);
      break;
    case 2:
      std::swap((*frames)[at], (*frames)[dice->Below(frames->size())]);
      break;
    case 3:
      frames->insert(place, other[dice->Below(other.size())]);
      break;
    default:
      ChangeFrame(&(*frames)[at], dice);
  }
}

std::string NonsenseOf(const std::vector<Conversation>& corpus, Dice* dice) {
  Conversation frames = corpus[dice->Below(corpus.size())];
  if (dice->OneIn(4)) {
    const Conversation& more = corpus[dice->Below(corpus.size())];
    frames.insert(frames.end(), more.begin(), more.end());
  }
  for (size_t left = dice->Below(6); left > 0; --left) Change(&frames, corpus, dice);
  std::string bytes = dice->OneIn(30) ? "" : testing::kPreface;
  for (const std::string& frame : frames) bytes += frame;
  if (dice->OneIn(10)) bytes.resize(dice->Below(bytes.size()));
  return bytes;
}

// --- The server ---

class WireFuzzTest : public testing::WireServerTest {
 protected:
  static constexpr int64_t kBudgetBytes = 1 << 20;
  static constexpr int64_t kMessageBytesMax = 200'000;

  WireFuzzTest() : late_thread_([this] { AnswerLate(); }) {
    shared_->calls.budget = budget_;
    shared_->calls.message_bytes_max = kMessageBytesMax;
    shared_->calls.reply_compression = ReplyCompression::kLikeRequest;
    shared_->methods["/test.Echo/Late"] = {"/test.Echo/Late", &late_};
    shared_->methods["/test.Echo/Stream"] = {"/test.Echo/Stream", &stream_};
    shared_->methods["/test.Echo/Many"] = {"/test.Echo/Many", &many_};
  }
  ~WireFuzzTest() override {
    Stop();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_one();
    late_thread_.join();
  }

  // Sends `bytes` in parts, reads some of the answer or nothing of it, and closes.
  void Talk(const std::string& bytes, Dice* dice) const {
    RawHttp2 client(port());
    const size_t part_bytes_max = dice->OneIn(2) ? bytes.size() : 1 + dice->Below(200);
    for (size_t at = 0; at < bytes.size();) {
      const size_t part_bytes = 1 + dice->Below(part_bytes_max);
      if (!client.Send(bytes.substr(at, part_bytes))) break;
      at += part_bytes;
      if (dice->OneIn(8)) std::this_thread::yield();
      if (dice->OneIn(8)) client.ReadFor(0);
    }
    if (dice->OneIn(2)) client.ReadFor(1);
    if (dice->OneIn(4)) client.EndWrites();
    if (dice->OneIn(8)) client.ReadFor(2);
  }

  // Returns true as soon as all that clients took has come back; fails after 20 s.
  bool IsAllReturned() const {
    const int64_t end_ns = base::MonotonicNs() + 20 * kSecondNs;
    while (base::MonotonicNs() < end_ns) {
      if (shared_->call_counts.live_count == 0 && shared_->call_counts.arrived_count == 0 &&
          shared_->call_counts.open_bytes == 0 && budget_->in_use_bytes() == 0 &&
          network_.connection_count() == 0 && admission_->in_flight_count() == 0) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << shared_->call_counts.live_count << " calls, of them arrived "
                  << shared_->call_counts.arrived_count << ", " << shared_->call_counts.open_bytes
                  << " bytes of open calls, " << budget_->in_use_bytes() << " bytes of the budget, "
                  << network_.connection_count() << " connections, "
                  << admission_->in_flight_count() << " in flight";
    return false;
  }

 private:
  // Returns a copy of the message; the call has the bytes only until its handler returns.
  static std::string MessageOf(const Call& call) {
    std::string bytes;
    call.request().AppendRest(&bytes);
    return bytes;
  }

  // Has each call answered by another thread, which the end of the call does not wait for.
  struct LateHandler final : testing::WholeAnswers {
    explicit LateHandler(WireFuzzTest* test) : test(test) {}
    void Answer(RunnableCall* call) override {
      {
        const std::lock_guard<std::mutex> lock(test->mutex_);
        test->late_calls_.emplace_back(call->shared_from_this(), MessageOf(*call));
      }
      test->changed_.notify_one();
    }
    WireFuzzTest* const test;
  };

  struct EchoStreams final : StreamingHandler {
    void HandleMessage(Call* call) override { call->Send(MessageOf(*call)); }
    void HandleEnd(Call* call) override { call->Finish({}); }
  };

  // Sends more messages than may wait.
  struct ManyHandler final : CallHandler {
    void Handle(Call* call) override {
      for (int i = 0; i < 100 && !call->is_over(); ++i) call->Send(std::string(1'000, 'm'));
      if (!call->is_over()) call->Finish({});
    }
  };

  void AnswerLate() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_ending_ || !late_calls_.empty(); });
      if (late_calls_.empty()) return;
      auto [call, message] = std::move(late_calls_.front());
      late_calls_.pop_front();
      lock.unlock();
      call->Reply(message);
      call.reset();
      lock.lock();
    }
  }

  const std::shared_ptr<base::ByteBudget> budget_ =
      std::make_shared<base::ByteBudget>(kBudgetBytes);
  LateHandler late_{this};
  EchoStreams stream_;
  ManyHandler many_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::shared_ptr<Call>, std::string>> late_calls_;
  bool is_ending_ = false;
  std::thread late_thread_;
};

// A client that behaves, on one connection.
class HealthyClient {
 public:
  explicit HealthyClient(int port) : connection_(port) {
    connection_.Begin();
    connection_.SendFrame(testing::kWindowUpdateFrame, 0, 0, BigEndian(0x7fffffff - 65'535));
  }
  // Returns the answer to a call; "" if it fails.
  std::string Echo(const std::string& bytes) {
    const uint32_t stream = std::exchange(next_stream_, next_stream_ + 2);
    connection_.Send(HeadersOf(stream, "/test.Echo/Echo") + LastData(stream, GrpcMessage(bytes)));
    std::string answer;
    while (const auto frame = connection_.Next()) {
      if (frame->stream != stream) continue;
      if (frame->type == testing::kDataFrame) answer += frame->payload;
      if (frame->type == testing::kHeadersFrame && (frame->flags & testing::kEndStream) != 0) break;
    }
    return answer.size() < 5 ? "" : answer.substr(5);
  }

 private:
  RawHttp2 connection_;
  uint32_t next_stream_ = 1;
};

size_t DescriptorCount() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST_F(WireFuzzTest, NonsenseHarmsNobodyElse) {
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(PrintSeed);
  std::signal(SIGABRT, PrintSeedAndAbort);
  constexpr int64_t kCountPerCheck = 100;
  const std::vector<Conversation> corpus = testing::Conversations();
  const uint64_t first_seed = FromEnvironment("MILLPOND_WIRE_FUZZ_SEED", kFirstSeed);
  const auto seconds = static_cast<int64_t>(FromEnvironment("MILLPOND_WIRE_FUZZ_SECONDS", 0));
  const auto count = static_cast<int64_t>(
      FromEnvironment("MILLPOND_WIRE_FUZZ_COUNT", seconds > 0 ? INT64_MAX : kUsualCount));
  const int64_t end_ns = base::MonotonicNs() + (seconds > 0 ? seconds : 20) * kSecondNs;
  const size_t descriptor_count = DescriptorCount();
  auto healthy = std::make_unique<HealthyClient>(port());
  int64_t done = 0;
  for (; done < count && base::MonotonicNs() < end_ns; ++done) {
    const uint64_t seed = first_seed + static_cast<uint64_t>(done);
    current_seed = seed;
    Dice dice(seed);
    Talk(NonsenseOf(corpus, &dice), &dice);
    const std::string text = "healthy " + std::to_string(seed);
    ASSERT_EQ(healthy->Echo(text), text) << "MILLPOND_WIRE_FUZZ_SEED=" << seed;
    if (done % kCountPerCheck != kCountPerCheck - 1) continue;
    healthy.reset();
    ASSERT_TRUE(IsAllReturned()) << "MILLPOND_WIRE_FUZZ_SEED=" << seed << " or one of the "
                                 << kCountPerCheck << " before it";
    healthy = std::make_unique<HealthyClient>(port());
  }
  healthy.reset();
  EXPECT_TRUE(IsAllReturned());
  // A connection is counted no more shortly before its descriptor is closed.
  const int64_t closed_end_ns = base::MonotonicNs() + 20 * kSecondNs;
  while (DescriptorCount() > descriptor_count && base::MonotonicNs() < closed_end_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LE(DescriptorCount(), descriptor_count);
  std::printf("%ld conversations\n", static_cast<long>(done));
}

// The start of a message that comes together with the end of the one before it is kept.
TEST_F(WireFuzzTest, MessagesOfAStreamMayBeSplitAnywhere) {
  const std::string messages = GrpcMessage("first") + GrpcMessage(std::string(9'000, 's'));
  for (const size_t at : {1, 9, 10, 12, 15, 16, 5'000}) {
    RawHttp2 client(port());
    client.Begin();
    client.Send(HeadersOf(1, "/test.Echo/Stream") +
                FrameBytes(testing::kDataFrame, 0, 1, messages.substr(0, at)));
    // The server reads the first part alone.
    client.SendFrame(testing::kPingFrame, 0, 0, "12345678");
    std::string answer;
    for (auto frame = client.Next(); frame != nullptr; frame = client.Next()) {
      if (frame->type == testing::kDataFrame) answer += frame->payload;
      if (frame->type == testing::kPingFrame) {
        client.Send(LastData(1, messages.substr(at)));
      }
      if (frame->type == testing::kHeadersFrame && (frame->flags & testing::kEndStream) != 0) break;
    }
    EXPECT_EQ(answer, messages) << at;
  }
}

// The kernel reports the end of a connection together with its last bytes.
TEST_F(WireFuzzTest, ClientThatSendsAndClosesIsForgotten) {
  for (int i = 0; i < 100; ++i) {
    RawHttp2 client(port());
    client.Begin();
    client.Send(HeadersOf(1, "/test.Echo/Echo") +
                FrameBytes(testing::kDataFrame, 0, 1, GrpcMessage("part").substr(0, 7)));
  }
  EXPECT_TRUE(IsAllReturned());
}

TEST_F(WireFuzzTest, AnswerMayComeByteByByte) {
  for (const size_t size : {0, 1, 20}) {
    RawHttp2 client(port());
    // A window of one byte for each stream.
    client.Send(testing::kPreface +
                FrameBytes(testing::kSettingsFrame, 0, 0, testing::SettingBytes(4, 1)));
    const std::string message = GrpcMessage(std::string(size, 'b'));
    client.Send(HeadersOf(1, "/test.Echo/Echo") + LastData(1, message));
    std::string answer;
    while (const auto frame = client.Next()) {
      if (frame->type == testing::kDataFrame) answer += frame->payload;
      if (frame->type == testing::kDataFrame && answer.size() < message.size()) {
        client.SendFrame(testing::kWindowUpdateFrame, 0, 1, BigEndian(1));
      }
      if (frame->type == testing::kHeadersFrame && (frame->flags & testing::kEndStream) != 0) break;
    }
    EXPECT_EQ(answer, message);
  }
}

// The changed conversations reach little of the server if the unchanged ones do not.
TEST_F(WireFuzzTest, UnchangedConversationsAreAnswered) {
  const std::string goaway = "GOAWAY 1";
  // The answers to each conversation, in the corpus's order: a stream and its grpc-status.
  const std::vector<std::set<std::string>> answers = {
      {"1: 0"},          {"1: 0"},
      {"1: 0"},          {"1: 0", "3: 0", "5: 0"},
      {"9: 0"},          {"1: 0", "3: 0", "5: 0", "7: 0", "9: 0", "11: 0"},
      {"1: 0", "3: 0"},  {"1: 0", "3: 13", "5: 13", "7: 0"},
      {"1: 0", "3: 0"},  {"1: 0"},
      {"1: 0", "3: 0"},  {"1: 8", "3: 13", "5: 12", "7: 12"},
      {"3: 3", "5: 12"}, {goaway},
      {goaway},          {goaway},
  };
  const std::vector<Conversation> corpus = testing::Conversations();
  ASSERT_EQ(answers.size(), corpus.size());
  for (size_t i = 0; i < corpus.size(); ++i) {
    RawHttp2 client(port());
    std::string bytes = testing::kPreface;
    for (const std::string& frame : corpus[i]) bytes += frame;
    client.Send(bytes);
    std::set<std::string> missing = answers[i];
    while (!missing.empty()) {
      const auto frame = client.Next();
      if (frame == nullptr) break;
      if (frame->type == testing::kGoawayFrame) {
        missing.erase("GOAWAY " + std::to_string(frame->ErrorCode()));
      }
      if (frame->type != testing::kHeadersFrame) continue;
      const std::string headers = client.Decode(*frame);
      const std::string name = "grpc-status: ";
      const size_t at = headers.find(name);
      if (at == std::string::npos) continue;
      const size_t begin = at + name.size();
      missing.erase(std::to_string(frame->stream) + ": " +
                    headers.substr(begin, headers.find('\n', begin) - begin));
    }
    EXPECT_EQ(missing, std::set<std::string>()) << "conversation " << i;
  }
  EXPECT_TRUE(IsAllReturned());
}

}  // namespace
}  // namespace millpond::rpc
