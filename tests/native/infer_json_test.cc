#include "native/rest/infer_json.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/native/answer_alone.h"
#include "tests/native/echo_servable.h"
#include "tests/native/infer_messages.h"
#include "tests/native/wire_message.h"

namespace millpond::rest {
namespace {

using base::Code;
using base::Status;
using testing::RawOf;

constexpr char kWords[] =
    R"({"name": "words", "shape": [2], "datatype": "BYTES", "data": ["", "ü"]})";
constexpr char kRows[] = R"({"name": "rows", "datatype": "FP32", "shape": [1, 3], )";

// Copies the text into its own block, so that AddressSanitizer detects a read past its end.
Status Ask(const std::string& body, std::optional<size_t> json_bytes, RestReply* reply) {
  static const testing::EchoServable servable;
  const std::vector<char> block(body.begin(), body.end());
  std::optional<std::string> header;
  if (json_bytes) header = std::to_string(*json_bytes);
  *reply = {};
  return testing::AnswerAlone(
      [&](PreparedRest* prepared) {
        return PrepareModelInfer(servable, {block.data(), block.size()}, header, prepared);
      },
      reply);
}

std::string Answer(const std::string& body, std::optional<size_t> json_bytes = {}) {
  RestReply reply;
  const Status answered = Ask(body, json_bytes, &reply);
  EXPECT_TRUE(answered.ok()) << answered.message();
  return std::string(reply.body.view());
}

void ExpectRefused(const std::string& body, const std::string& in_message,
                   std::optional<size_t> json_bytes = {}, Code code = Code::kInvalidArgument) {
  RestReply reply;
  const Status refused = Ask(body, json_bytes, &reply);
  EXPECT_EQ(refused.code(), code) << body;
  EXPECT_NE(refused.message().find(in_message), std::string::npos) << refused.message();
}

std::string Body(const std::string& inputs, const std::string& more = "") {
  return R"({"id": "r1", "inputs": [)" + inputs + "]" + more + "}";
}

std::string Rows(const std::string& data) { return kRows + (R"("data": )" + data) + "}"; }

TEST(InferJsonTest, AnswersFlatDataOfAllOutputs) {
  EXPECT_EQ(Answer(Body(std::string(kWords) + ", " + Rows("[1, 2.5, -3]"))),
            R"({"model_name":"echo","model_version":"7","id":"r1","outputs":[)"
            R"({"name":"a","datatype":"FP32","shape":[1,3],"data":[1.0, 2.5, -3.0]},)"
            R"({"name":"b","datatype":"BYTES","shape":[2],"data":["", "ü"]}]})");
}

TEST(InferJsonTest, NestedDataFollowsTheGivenShape) {
  const std::string only_a = R"(, "outputs": [{"name": "a"}])";
  const std::string flat = Answer(Body(std::string(kWords) + "," + Rows("[1, 2, 3]"), only_a));
  EXPECT_EQ(Answer(Body(std::string(kWords) + "," + Rows("[[1, 2, 3]]"), only_a)), flat);
  ExpectRefused(Body(std::string(kWords) + "," + Rows("[1, 2]")),
                "input 'rows': data holds 2 elements, the shape has 3");
  ExpectRefused(Body(std::string(kWords) + "," + Rows("[1, 2, \"x\"]")), "input 'rows': ");
}

TEST(InferJsonTest, BinaryInputsLieBehindTheJsonInTheirOrder) {
  const std::string json = Body(
      R"({"name": "words", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 7}}, )" +
          (kRows + std::string(R"("parameters": {"binary_data_size": 12}})")),
      R"(, "parameters": {"binary_data_output": true})");
  const std::string binary = RawOf(std::vector<std::string>{"one"}) + RawOf<float>({1, 2, 3});
  RestReply reply;
  const Status answered = Ask(json + binary, json.size(), &reply);
  ASSERT_TRUE(answered.ok()) << answered.message();
  ASSERT_TRUE(reply.json_bytes);
  EXPECT_EQ(reply.body.view().substr(0, *reply.json_bytes),
            R"({"model_name":"echo","model_version":"7","id":"r1","outputs":[)"
            R"({"name":"a","datatype":"FP32","shape":[1,3],"parameters":{"binary_data_size":12}},)"
            R"({"name":"b","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":7}}]})");
  EXPECT_EQ(reply.body.view().substr(*reply.json_bytes),
            RawOf<float>({1, 2, 3}) + RawOf(std::vector<std::string>{"one"}));
  EXPECT_EQ(reply.content_type, "application/octet-stream");
  ExpectRefused(json + binary, "Inference-Header-Content-Length");
  ExpectRefused(json + binary + "x", "1 bytes after the JSON do not belong to an input",
                json.size());
  ExpectRefused(json + binary.substr(1), "are not its binary_data_size", json.size());
  ExpectRefused(json, "the body has", json.size() + 1);
}

TEST(InferJsonTest, EachOutputChoosesBinaryForItself) {
  RestReply reply;
  const std::string body =
      Body(std::string(kWords) + "," + Rows("[1, 2, 3]"),
           R"(, "outputs": [{"name": "b", "parameters": {"binary_data": false}}, {"name": "a"}],
          "parameters": {"binary_data_output": true})");
  ASSERT_TRUE(Ask(body, {}, &reply).ok());
  EXPECT_NE(reply.body.view().find(R"("data":["", "ü"])"), std::string::npos);
  EXPECT_EQ(reply.body.view().substr(*reply.json_bytes), RawOf<float>({1, 2, 3}));
}

TEST(InferJsonTest, StringsOutsideUtf8NeedBinaryData) {
  const std::string json = Body(
      R"({"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}})",
      R"(, "parameters": {"signature_name": "of_7"})");
  ExpectRefused(json + RawOf(std::vector<std::string>{"\xff"}), "binary_data", json.size());
}

TEST(InferJsonTest, MalformedRequestsAreRefused) {
  ExpectRefused("", "");
  ExpectRefused("[]", "an object");
  ExpectRefused(Body(R"({"name": "rows", "datatype": "FP32", "shape": [1.5]})"), "a shape has 1.5");
  ExpectRefused(Body(R"({"name": "rows", "datatype": "FP32", "shape": [1]})"), "neither data nor");
  ExpectRefused(Body(kRows + std::string(R"("data": [1], "parameters": {"binary_data_size": 4}})")),
                "send one of them");
  ExpectRefused(Body(kRows + std::string(R"("parameters": {"shared_memory_region": "r"}})")),
                "'shared_memory_region'", {}, Code::kUnimplemented);
  std::string outputs = R"({"outputs": [{})";
  for (int i = 0; i < 10'000; ++i) outputs += ",{}";
  ExpectRefused(outputs + "]}", "more than 10000");
}

TEST(InferJsonTest, DuplicateKeysOfAnObjectAreRefused) {
  const std::string rows = Rows("[1, 2, 3]");
  const std::string again = rows.substr(0, rows.size() - 1);
  ExpectRefused(Body(rows, R"(, "inputs": [])"), "duplicate key 'inputs' in one object");
  ExpectRefused(Body(rows, R"(, "outputs": [], "outputs": [])"), "duplicate key 'outputs'");
  ExpectRefused(Body(rows, R"(, "outputs": [{"name": "a", "name": "b"}])"), "duplicate key 'name'");
  ExpectRefused(Body(again + R"(, "data": [1, 2, 3]})"), "duplicate key 'data'");
  ExpectRefused(Body(again + R"(, "shape": [1]})"), "duplicate key 'shape'");
}

}  // namespace
}  // namespace millpond::rest
