#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "native/base/clock.h"
#include "native/python/binding.h"
#include "native/rpc/server.h"
#include "native/tf/runtime.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using rpc::RareCall;
using rpc::Server;
using rpc::ServerOptions;

// Returns a failure code for a code from Python: UNKNOWN if the code is unknown or OK, so that a
// failure is never sent as a success.
base::Code FailureCode(int code) {
  const bool is_failure = code > 0 && code < base::kCodeCount;
  return is_failure ? static_cast<base::Code>(code) : base::Code::kUnknown;
}

std::optional<double> RemainingSeconds(const RareCall& call) {
  constexpr double kNsPerSecond = 1e9;
  const std::optional<int64_t> remaining_ns = call.RemainingNs(base::MonotonicNs());
  if (!remaining_ns) return std::nullopt;
  return static_cast<double>(*remaining_ns) / kNsPerSecond;
}

void RegisterRareCall(nb::module_& module) {
  nb::class_<RareCall>(module, "RareCall", nb::is_final())
      .def_prop_ro("method", &RareCall::path)
      .def_prop_ro("request",
                   [](const RareCall& self) {
                     return nb::bytes(self.request().data(), self.request().size());
                   })
      .def_prop_ro("remaining_seconds", &RemainingSeconds)
      .def_prop_ro("is_wanted", &RareCall::IsWanted)
      .def_prop_ro("trace_context", &RareCall::trace_context)
      .def_prop_ro("peer", &RareCall::peer)
      .def_prop_ro("client_names", &RareCall::client_names)
      .def_prop_ro("is_forwarded", &RareCall::is_forwarded)
      .def(
          "reply",
          [](RareCall& self, nb::bytes response) {
            ThrowIfError(self.Reply({response.c_str(), response.size()}));
          },
          nb::arg("response"))
      .def(
          "fail",
          [](RareCall& self, int code, std::string message) {
            ThrowIfError(self.Fail({FailureCode(code), std::move(message)}));
          },
          nb::arg("code"), nb::arg("message"));
}

rpc::ReplyCompression ReplyCompressionOf(const std::string& name) {
  if (name == "request") return rpc::ReplyCompression::kLikeRequest;
  if (name == "deflate") return rpc::ReplyCompression::kDeflate;
  if (name == "gzip") return rpc::ReplyCompression::kGzip;
  if (name != "none") {
    ThrowIfError(base::InvalidArgument("reply_compression '" + name +
                                       "' must be none, request, deflate or gzip"));
  }
  return rpc::ReplyCompression::kNone;
}

void MakeServer(Server* self, servable::ServingMap& map, std::vector<std::string> addresses,
                int thread_count, int64_t max_message_bytes,
                rpc::ChannelArguments channel_arguments, std::vector<std::string> rare_methods,
                const PyRequestStatistics* statistics, std::shared_ptr<metrics::SpanBuffer> spans,
                std::shared_ptr<rpc::ServerCertificates> certificates,
                std::shared_ptr<rpc::ReflectionTable> reflection,
                const std::string& reply_compression, bool has_tensor_content,
                std::shared_ptr<servable::Admission> admission, int max_thread_count,
                size_t reply_bytes_max, std::shared_ptr<base::ByteBudget> budget,
                double first_version_wait_seconds,
                std::map<std::string, int64_t> rare_message_bytes_max,
                int64_t connections_per_address_max, double request_seconds_max) {
  ServerOptions options;
  options.limits.connections_per_address_max = connections_per_address_max;
  options.request_ns_max = SecondsToNs(request_seconds_max);
  options.addresses = std::move(addresses);
  options.thread_count = thread_count;
  options.max_message_bytes = std::min<int64_t>(max_message_bytes, INT32_MAX);
  options.channel_arguments = std::move(channel_arguments);
  options.rare_methods = std::move(rare_methods);
  options.rare_message_bytes_max = std::move(rare_message_bytes_max);
  if (statistics != nullptr) options.statistics = statistics->statistics();
  options.spans = std::move(spans);
  options.certificates = std::move(certificates);
  options.reflection = std::move(reflection);
  options.reply_compression = ReplyCompressionOf(reply_compression);
  if (has_tensor_content) options.tensor_encoding = tensor::TensorEncoding::kTensorContent;
  options.serves_session_run = tf::CurrentRuntimeOptions().serves_session_run;
  options.admission = std::move(admission);
  options.max_thread_count = max_thread_count;
  options.reply_bytes_max = std::min(reply_bytes_max, base::kMaxReplyBytes);
  options.budget = std::move(budget);
  options.first_version_wait_ns = SecondsToNs(first_version_wait_seconds);
  new (self) Server(&map, std::move(options));
}

}  // namespace

void RegisterServer(nb::module_& module) {
  RegisterRareCall(module);
  nb::class_<Server>(module, "GrpcServer", nb::is_final())
      .def("__init__", &MakeServer, nb::keep_alive<1, 2>(), nb::arg("serving_map"), nb::kw_only(),
           nb::arg("addresses"), nb::arg("thread_count"), nb::arg("max_message_bytes"),
           nb::arg("channel_arguments"), nb::arg("rare_methods"),
           nb::arg("request_statistics").none() = nb::none(), nb::arg("spans").none() = nb::none(),
           nb::arg("certificates").none() = nb::none(), nb::arg("reflection").none() = nb::none(),
           nb::arg("reply_compression") = "request", nb::arg("has_tensor_content") = false,
           nb::arg("admission").none() = nb::none(), nb::arg("max_thread_count") = 0,
           nb::arg("reply_bytes_max") = base::kMaxReplyBytes, nb::arg("budget").none() = nb::none(),
           nb::arg("first_version_wait_seconds") = 0.0,
           nb::arg("rare_message_bytes_max") = std::map<std::string, int64_t>(),
           nb::arg("connections_per_address_max") = 0, nb::arg("request_seconds_max") = 0.0)
      .def("start", [](Server& self) { ThrowIfError(WithoutGil([&] { return self.Start(); })); })
      .def_prop_ro("port", &Server::port)
      .def_prop_ro("connection_count", &Server::connection_count)
      .def_prop_ro("limit_counts", &Server::LimitCountsByName)
      .def(
          "take_rare_call",
          [](Server& self, double timeout_seconds) {
            auto call = WithoutGil([&] { return self.TakeRareCall(SecondsToNs(timeout_seconds)); });
            if (call == nullptr && !self.HasRareCallsToCome()) throw nb::stop_iteration();
            return call;
          },
          nb::arg("timeout_seconds"),
          // The binder cannot derive that the unique_ptr may be null.
          nb::sig("def take_rare_call(self, timeout_seconds: float) -> RareCall | None"))
      .def(
          "set_health",
          [](Server& self, const std::string& service, bool is_serving) {
            WithoutGil([&] { self.SetHealth(service, is_serving); });
          },
          nb::arg("service"), nb::arg("is_serving"))
      .def(
          "remove_health",
          [](Server& self, const std::string& service) {
            WithoutGil([&] { self.RemoveHealth(service); });
          },
          nb::arg("service"))
      .def("share_batches_with", &Server::ShareBatchesWith, nb::arg("others"))
      .def(
          "pin_request_threads",
          [](Server& self, bool is_pinned) {
            return WithoutGil([&] { return self.PinRequestThreads(is_pinned); });
          },
          nb::arg("is_pinned"))
      .def(
          "shutdown",
          [](Server& self, double drain_seconds) {
            return WithoutGil([&] { return self.Shutdown(SecondsToNs(drain_seconds)); });
          },
          nb::arg("drain_seconds"));
}

}  // namespace millpond::python
