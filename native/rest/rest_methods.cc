#include "native/rest/rest_methods.h"

#include <utility>

#include "native/base/reply_buffer.h"
#include "native/base/wire_reader.h"
#include "native/inference/classify.h"
#include "native/inference/regress.h"
#include "native/inference/signature_request.h"
#include "native/rest/json_tensor_writer.h"
#include "native/rest/json_writer.h"
#include "native/rest/predict_body.h"
#include "native/rest/tf_example_body.h"
#include "native/tensor/output_set.h"
#include "native/tensor/tensor_list.h"

namespace millpond::rest {
namespace {

using base::Status;

// The first estimate of the text of a class or an example in a reply.
constexpr size_t kExpectedResultBytes = 32;

// Writes a label like the strings of an output (json_tensor_writer.h).
void WriteLabel(std::string_view label, JsonWriter* json) {
  if (base::IsValidUtf8(label)) return json->String(label);
  json->Base64(label);
}

// Writes [["label", score], ...] for one example.
void WriteClasses(const inference::Classifications& all, int64_t example, JsonWriter* json) {
  json->Raw('[');
  for (int64_t i = 0; i < all.class_count() && json->ok(); ++i) {
    json->Raw(i == 0 ? "[" : ", [");
    WriteLabel(all.has_labels() ? all.label(example, i) : "", json);
    json->Raw(", ");
    json->Number(all.has_scores() ? all.score(example, i) : 0.0F);
    json->Raw(']');
  }
  json->Raw(']');
}

// Writes {"results": [...]} of `count` results, each with `write`.
template <typename Write>
Status WriteResults(int64_t count, size_t expected_bytes, const tensor::RunContext& run,
                    Write write, RestReply* reply) {
  JsonWriter json(run.reply_limits(), expected_bytes);
  json.Raw("{\"results\": [");
  for (int64_t i = 0; i < count && json.ok(); ++i) {
    if (i > 0) json.Raw(", ");
    write(i, &json);
  }
  json.Raw("]}");
  return base::MoveValue(json.Take(), &reply->body);
}

}  // namespace

Status PreparePredict(const servable::Servable& servable, std::string_view body,
                      PreparedRest* prepared) {
  PredictBody request;
  MILLPOND_RETURN_IF_ERROR(ReadPredictBody(servable, body, &request));
  servable::PreparedRun& run = prepared->run;
  run.servable = &servable;
  run.signatures = {request.signature};
  run.outputs = tensor::OutputSet::All(request.signature->outputs.size());
  run.inputs = std::move(request.inputs);
  prepared->encode = [format = request.format](servable::PreparedRun* ran, RestReply* reply) {
    return base::MoveValue(WritePredictReply(*ran->signatures.front(), format, ran->results.front(),
                                             ran->context.reply_limits()),
                           &reply->body);
  };
  return {};
}

Status PrepareClassify(const servable::Servable& servable, std::string_view body,
                       PreparedRest* prepared) {
  ExampleBody request;
  MILLPOND_RETURN_IF_ERROR(ReadExampleBody(body, &request));
  prepared->encode = [](servable::PreparedRun* run, RestReply* reply) -> Status {
    const auto classified = inference::ClassificationsOf(run);
    if (!classified.ok()) return classified.status();
    const inference::Classifications& classes = classified.value();
    const auto class_count = static_cast<size_t>(classes.example_count() * classes.class_count());
    return WriteResults(
        classes.example_count(), kExpectedResultBytes * (1 + class_count), run->context,
        [&](int64_t example, JsonWriter* json) { WriteClasses(classes, example, json); }, reply);
  };
  return inference::PrepareClassify(servable, request.signature_name, std::move(request.examples),
                                    &prepared->run);
}

Status PrepareRegress(const servable::Servable& servable, std::string_view body,
                      PreparedRest* prepared) {
  ExampleBody request;
  MILLPOND_RETURN_IF_ERROR(ReadExampleBody(body, &request));
  prepared->encode = [](servable::PreparedRun* run, RestReply* reply) -> Status {
    const auto regressed = inference::RegressionsOf(run);
    if (!regressed.ok()) return regressed.status();
    const inference::Regressions& values = regressed.value();
    return WriteResults(
        values.example_count(),
        kExpectedResultBytes * (1 + static_cast<size_t>(values.example_count())), run->context,
        [&](int64_t example, JsonWriter* json) { json->Number(values.value(example)); }, reply);
  };
  return inference::PrepareRegress(servable, request.signature_name, std::move(request.examples),
                                   &prepared->run);
}

}  // namespace millpond::rest
