// Logged runs, over TensorFlow's tensors.
#include "native/inference/run_log.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/base/wire_reader.h"
#include "native/inference/predict_codec.h"
#include "native/tf/tensor_storage.h"
#include "tests/native/fake_servable.h"
#include "tests/native/queued_records.h"
#include "tests/native/tensors.h"

namespace millpond::inference {
namespace {

using base::WireReader;
using base::WireTag;
using servable::LoggedRequest;
using servable::RequestLogSettings;
using tensorflow::Tensor;
using testing::Vector;

// Returns the length-delimited fields of a message by number, in order.
std::multimap<uint32_t, std::string> FieldsOf(const std::string& message) {
  std::multimap<uint32_t, std::string> fields;
  const std::string_view segment = message;
  WireReader reader{&segment, 1};
  WireTag tag;
  while (!reader.AtEnd()) {
    EXPECT_TRUE(reader.ReadTag(&tag));
    std::string field;
    if (tag.type == base::WireType::kLengthDelimited) {
      WireReader body;
      EXPECT_TRUE(reader.ReadDelimited(&body));
      body.AppendRest(&field);
    } else {
      EXPECT_TRUE(reader.SkipField(tag));
    }
    fields.emplace(tag.field, field);
  }
  return fields;
}

std::string FieldOf(const std::string& message, uint32_t field) {
  const auto fields = FieldsOf(message);
  EXPECT_EQ(fields.count(field), 1) << field;
  const auto found = fields.find(field);
  return found == fields.end() ? "" : found->second;
}

struct Logged {
  LoggedRequest head;
  std::string metadata;
  std::string request;
  std::vector<std::string> output_names;
  std::string response_spec;
};

tensor::Signature Named(const std::string& name) {
  tensor::Signature signature;
  signature.name = name;
  signature.inputs = {testing::AnyShapeOf(tensorflow::DT_FLOAT),
                      testing::AnyShapeOf(tensorflow::DT_FLOAT)};
  signature.outputs = signature.inputs;
  signature.inputs[0].name = "a";
  signature.inputs[1].name = "b";
  signature.outputs[0].name = "p";
  signature.outputs[1].name = "q";
  return signature;
}

class RunLogTest : public ::testing::Test {
 protected:
  RunLogTest() { log_->Set(SettingsOfAll()); }

  static RequestLogSettings SettingsOfAll() {
    RequestLogSettings settings;
    settings.sampling_rate = 1;
    settings.inputs.are_all = settings.outputs.are_all = true;
    return settings;
  }

  // Runs the signatures for a = {1} and b = {2, 3}, and logs the run as a request does.
  void Run(const std::vector<std::string>& names,
           const tensor::OutputSet& outputs = tensor::OutputSet::All(2)) {
    RunLog run_log;
    Keep(names, outputs, &run_log);
    ASSERT_TRUE(run_log.is_kept());
    run_log.Hold(servable::ServableHandle(entry_.get()));
    run_log.Give(100, 20, "0af7651916cd43dd8448eb211c80319c");
    EXPECT_FALSE(run_log.is_kept());
  }

  void Keep(const std::vector<std::string>& names, const tensor::OutputSet& outputs,
            RunLog* run_log) {
    servable::PreparedRun run;
    run.servable = &entry_->servable();
    for (const auto& name : names) run.signatures.push_back(&run.servable->signatures().at(name));
    run.inputs.storage().tensors = {Vector<float>({1}), Vector<float>({2, 3})};
    if (names.size() == 1) run.outputs = outputs;
    servable::RunAlone(&run);
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    run_log->Keep(run, log_);
  }

  std::vector<Logged> Records() {
    std::vector<Logged> all;
    testing::TakeAll(*queue_, [&](std::string_view record) {
      Logged logged;
      std::memcpy(&logged.head, record.data(), sizeof logged.head);
      const std::string log(record.substr(sizeof logged.head));
      logged.metadata = FieldOf(log, 1);
      const std::string predict_log = FieldOf(log, 6);
      logged.request = FieldOf(predict_log, 1);
      for (const auto& [field, body] : FieldsOf(FieldOf(predict_log, 2))) {
        if (field == 1) logged.output_names.push_back(FieldOf(body, 1));
        if (field == 2) logged.response_spec = body;
      }
      all.push_back(std::move(logged));
    });
    return all;
  }

  static std::vector<std::string> InputNames(const Logged& logged) {
    const std::string_view segment = logged.request;
    PredictRequest request;
    EXPECT_TRUE(DecodePredictRequest({&segment, 1}, &request).ok());
    std::vector<std::string> names;
    for (const auto& input : request.inputs) names.push_back(input.name);
    return names;
  }

  std::shared_ptr<servable::RecordQueue> queue_ =
      std::make_shared<servable::RecordQueue>(size_t{1} << 16);
  std::shared_ptr<servable::RequestLog> log_ = std::make_shared<servable::RequestLog>(queue_, 3);
  std::shared_ptr<servable::ServableEntry> entry_ = std::make_shared<servable::ServableEntry>(
      std::make_unique<testing::FakeServable>(
          servable::ServableId{"m", 7}, std::vector<tensor::Signature>{Named("f"), Named("g")},
          [](const testing::FakeRun& run) { return testing::EchoInputs(run); }),
      nullptr, log_);
};

TEST_F(RunLogTest, RecordHasTheRequestTheAnswerAndTheTimes) {
  Run({"f"});
  const auto records = Records();
  ASSERT_EQ(records.size(), 1);
  const Logged& logged = records[0];
  EXPECT_EQ(logged.head.received_ns, 100);
  EXPECT_EQ(logged.head.latency_ns, 20);
  EXPECT_EQ(logged.head.version, 7);
  EXPECT_EQ(std::string(logged.head.trace_id, 32), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(InputNames(logged), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(logged.output_names, (std::vector<std::string>{"p", "q"}));
  // The metadata has the spec of the response: the version that answered.
  EXPECT_EQ(FieldOf(logged.metadata, 1), logged.response_spec);
  EXPECT_EQ(FieldOf(logged.response_spec, 3), "f");
}

TEST_F(RunLogTest, RunOfSeveralSignaturesIsARecordOfEach) {
  Run({"f", "g"});
  const auto records = Records();
  ASSERT_EQ(records.size(), 2);
  EXPECT_EQ(FieldOf(records[0].response_spec, 3), "f");
  EXPECT_EQ(FieldOf(records[1].response_spec, 3), "g");
}

TEST_F(RunLogTest, OnlyAllowedTensorsAreLogged) {
  RequestLogSettings settings;
  settings.sampling_rate = 1;
  settings.inputs.names = {"b", "unknown"};
  settings.outputs.names = {"q"};
  log_->Set(settings);
  Run({"f"});
  const auto records = Records();
  ASSERT_EQ(records.size(), 1);
  EXPECT_EQ(InputNames(records[0]), std::vector<std::string>{"b"});
  EXPECT_EQ(records[0].output_names, std::vector<std::string>{"q"});
  // The bytes of `a` and of `p` are nowhere in the record: {1} as float32.
  EXPECT_EQ(records[0].request.find("\x80\x3f"), std::string::npos);
  EXPECT_NE(records[0].request.find(std::string("\0\0\0@\0\0@@", 8)), std::string::npos);
}

TEST_F(RunLogTest, OutputsAreThoseThatWereAskedFor) {
  tensor::OutputSet q(2);
  q.Add(1);
  Run({"f"}, q);
  const auto records = Records();
  ASSERT_EQ(records.size(), 1);
  EXPECT_EQ(records[0].output_names, std::vector<std::string>{"q"});
}

TEST_F(RunLogTest, VersionIsPinnedUntilTheRecordsAreQueued) {
  RunLog run_log;
  Keep({"f"}, tensor::OutputSet::All(2), &run_log);
  run_log.Hold(servable::ServableHandle(entry_.get()));
  EXPECT_EQ(entry_->handle_count(), 1);
  run_log.Give(1, 1, "");
  EXPECT_EQ(entry_->handle_count(), 0);
  EXPECT_EQ(Records().at(0).head.trace_id[0], 0);
}

TEST_F(RunLogTest, DiscardedRunLeavesNothing) {
  RunLog run_log;
  Keep({"f"}, tensor::OutputSet::All(2), &run_log);
  run_log.Hold(servable::ServableHandle(entry_.get()));
  run_log.Discard();
  EXPECT_EQ(entry_->handle_count(), 0);
  run_log.Give(1, 1, "");
  EXPECT_TRUE(Records().empty());
  EXPECT_EQ(log_->Statistics().sampled_count, 0);
}

TEST_F(RunLogTest, RecordThatIsTooLargeIsCountedAsDropped) {
  queue_ = std::make_shared<servable::RecordQueue>(1024);
  log_ = std::make_shared<servable::RequestLog>(queue_, 3);
  log_->Set(SettingsOfAll());
  RunLog run_log;
  servable::PreparedRun run;
  run.servable = &entry_->servable();
  run.signatures = {&run.servable->signatures().at("f")};
  run.outputs = tensor::OutputSet::All(2);
  run.inputs.storage().tensors = {Tensor(tensorflow::DT_FLOAT, {1'000}), Vector<float>({1})};
  servable::RunAlone(&run);
  run_log.Keep(run, log_);
  run_log.Hold(servable::ServableHandle(entry_.get()));
  run_log.Give(1, 1, "");
  EXPECT_TRUE(Records().empty());
  EXPECT_EQ(log_->Statistics().sampled_count, 1);
  EXPECT_EQ(log_->Statistics().dropped_count, 1);
}

}  // namespace
}  // namespace millpond::inference
