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

Status SetBody(base::StatusOr<base::ReplyBytes> text, RestReply* reply) {
  if (text.ok()) reply->body = std::move(text.value());
  return text.status();
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
  return SetBody(json.Take(), reply);
}

}  // namespace

Status Predict(const servable::Servable& servable, std::string_view body,
               const tensor::RunContext& run, RestReply* reply, metrics::PhaseWatch* watch) {
  PredictBody request;
  MILLPOND_RETURN_IF_ERROR(ReadPredictBody(servable, body, &request));
  const auto all = tensor::OutputSet::All(request.signature->outputs.size());
  tensor::TensorList outputs;
  MILLPOND_RETURN_IF_ERROR(inference::RunSignature(servable, *request.signature, all, run,
                                                   request.inputs, &outputs, watch));
  return SetBody(WritePredictReply(*request.signature, request.format, outputs, run.reply_limits()),
                 reply);
}

Status Classify(const servable::Servable& servable, std::string_view body,
                const tensor::RunContext& run, RestReply* reply, metrics::PhaseWatch* watch) {
  ExampleBody request;
  MILLPOND_RETURN_IF_ERROR(ReadExampleBody(body, &request));
  inference::Classifications classes;
  MILLPOND_RETURN_IF_ERROR(inference::Classify(servable, request.signature_name, run,
                                               request.examples, &classes, watch));
  const auto class_count = static_cast<size_t>(classes.example_count() * classes.class_count());
  return WriteResults(
      classes.example_count(), kExpectedResultBytes * (1 + class_count), run,
      [&](int64_t example, JsonWriter* json) { WriteClasses(classes, example, json); }, reply);
}

Status Regress(const servable::Servable& servable, std::string_view body,
               const tensor::RunContext& run, RestReply* reply, metrics::PhaseWatch* watch) {
  ExampleBody request;
  MILLPOND_RETURN_IF_ERROR(ReadExampleBody(body, &request));
  inference::Regressions values;
  MILLPOND_RETURN_IF_ERROR(
      inference::Regress(servable, request.signature_name, run, request.examples, &values, watch));
  return WriteResults(
      values.example_count(),
      kExpectedResultBytes * (1 + static_cast<size_t>(values.example_count())), run,
      [&](int64_t example, JsonWriter* json) { json->Number(values.value(example)); }, reply);
}

}  // namespace millpond::rest
