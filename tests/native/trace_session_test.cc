#include "native/tf/trace_session.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/public/session.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"
#include "tsl/profiler/protobuf/xplane.pb.h"

namespace millpond::tf {
namespace {

using base::Code;
using tensorflow::DT_FLOAT;
using tensorflow::profiler::XSpace;

constexpr size_t kBytesMax = size_t{1} << 30;

TraceResult OfBytes() { return {true, 0, "", kBytesMax}; }

std::unique_ptr<TraceSession> StartTrace(int host_level = 3) {
  auto started = TraceSession::Start({host_level, true});
  EXPECT_TRUE(started.ok()) << started.status().message();
  return started.ok() ? std::move(started.value()) : nullptr;
}

// Runs a sum under the name "traced_sum".
class TraceSessionTest : public ::testing::Test {
 protected:
  TraceSessionTest() {
    testing::SavedModelFiles files;
    files.AddPlaceholder("a", DT_FLOAT, {-1});
    files.AddNode("traced_sum", "AddV2", {"a", "a"}, [](tensorflow::NodeDef* node) {
      (*node->mutable_attr())["T"].set_type(DT_FLOAT);
    });
    session_.reset(tensorflow::NewSession({}));
    EXPECT_TRUE(session_->Create(files.meta_graph().graph_def()).ok());
  }

  void RunOnce() {
    std::vector<tensorflow::Tensor> outputs;
    const absl::Status ran =
        session_->Run({{"a:0", testing::Vector<float>({1, 2})}}, {"traced_sum:0"}, {}, &outputs);
    ASSERT_TRUE(ran.ok()) << ran.message();
  }

  std::unique_ptr<tensorflow::Session> session_;
};

bool HasEventOf(const XSpace& space, const std::string& op) {
  for (const auto& plane : space.planes()) {
    for (const auto& [id, event] : plane.event_metadata()) {
      if (event.name().find(op) != std::string::npos) return true;
    }
  }
  return false;
}

TEST_F(TraceSessionTest, RecordsTheOpsThatRunMeanwhile) {
  const auto session = StartTrace();
  RunOnce();
  auto trace = session->Collect(OfBytes());
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_GT(trace.value().event_count, 0);
  XSpace space;
  ASSERT_TRUE(space.ParseFromString(trace.value().xspace));
  EXPECT_TRUE(HasEventOf(space, "traced_sum")) << space.DebugString().substr(0, 4000);
}

TEST_F(TraceSessionTest, OfAProcessThatRunsNothingHasNoOps) {
  const auto session = StartTrace();
  auto trace = session->Collect(OfBytes());
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  XSpace space;
  ASSERT_TRUE(space.ParseFromString(trace.value().xspace));
  EXPECT_FALSE(HasEventOf(space, "traced_sum"));
}

TEST_F(TraceSessionTest, IsOneAtATime) {
  const auto first = StartTrace();
  const auto second = TraceSession::Start({});
  EXPECT_EQ(second.status().code(), Code::kAlreadyExists) << second.status().message();
  ASSERT_TRUE(first->Collect(OfBytes()).ok());
  EXPECT_NE(StartTrace(), nullptr);
}

TEST_F(TraceSessionTest, ThatIsDroppedMakesRoomForAnother) {
  StartTrace().reset();
  const auto session = StartTrace();
  ASSERT_NE(session, nullptr);
  session->Drop();
  session->Drop();
  EXPECT_EQ(session->Collect(OfBytes()).status().code(), Code::kFailedPrecondition);
  EXPECT_NE(StartTrace(), nullptr);
}

TEST_F(TraceSessionTest, IsCollectedOnce) {
  const auto session = StartTrace();
  ASSERT_TRUE(session->Collect(OfBytes()).ok());
  EXPECT_EQ(session->Collect(OfBytes()).status().code(), Code::kFailedPrecondition);
}

TEST_F(TraceSessionTest, LargerThanTheLimitIsRefusedWithItsSize) {
  const auto session = StartTrace();
  RunOnce();
  const auto trace = session->Collect({true, 0, "", 10});
  EXPECT_EQ(trace.status().code(), Code::kResourceExhausted);
  EXPECT_NE(trace.status().message().find("more than the 10 of"), std::string::npos);
}

TEST_F(TraceSessionTest, HoldsItsWarning) {
  const auto session = StartTrace();
  auto trace = session->Collect({true, 0, "ended early", kBytesMax});
  ASSERT_TRUE(trace.ok());
  XSpace space;
  ASSERT_TRUE(space.ParseFromString(trace.value().xspace));
  ASSERT_GE(space.warnings_size(), 1);
  EXPECT_EQ(space.warnings(space.warnings_size() - 1), "ended early");
}

TEST_F(TraceSessionTest, TotalsCountEachNameAndBeginWithTheLongest) {
  constexpr int kRunCount = 5;
  const auto session = StartTrace();
  for (int i = 0; i < kRunCount; ++i) RunOnce();
  auto trace = session->Collect({false, 1000, "", 0});
  ASSERT_TRUE(trace.ok());
  EXPECT_TRUE(trace.value().xspace.empty());
  const std::vector<EventTotal>& totals = trace.value().totals;
  int64_t sum_count = 0;
  for (size_t i = 0; i < totals.size(); ++i) {
    if (i > 0) {
      EXPECT_GE(totals[i - 1].total_ns, totals[i].total_ns);
    }
    if (totals[i].name.find("traced_sum") != std::string::npos) sum_count = totals[i].count;
  }
  EXPECT_EQ(sum_count, kRunCount);
}

TEST_F(TraceSessionTest, TotalsObeyTheRequestedNumber) {
  const auto session = StartTrace();
  RunOnce();
  auto trace = session->Collect({false, 1, "", 0});
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace.value().totals.size(), 1U);
}

}  // namespace
}  // namespace millpond::tf
