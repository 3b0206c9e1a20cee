#include "native/tf/scatter_program.h"

#include <string>
#include <utility>
#include <vector>

#include "native/pjrt/row_scatter.h"
#include "native/tf/buffer_type.h"
#include "native/tf/packed_block.h"
#include "native/tf/status.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace millpond::tf {
namespace {

constexpr char kDoing[] = "making a program that writes rows";

// Returns XLA's type of the elements of a buffer: that of the dtype with such buffers.
base::StatusOr<xla::PrimitiveType> ElementType(PJRT_Buffer_Type type) {
  for (int dtype = tensorflow::DT_FLOAT; dtype <= tensorflow::DataType_MAX; ++dtype) {
    if (BufferType(dtype) != type) continue;
    xla::PrimitiveType element = xla::PRIMITIVE_TYPE_INVALID;
    MILLPOND_RETURN_IF_TF_ERROR(
        tensorflow::DataTypeToPrimitiveType(static_cast<tensorflow::DataType>(dtype), &element),
        kDoing);
    return element;
  }
  return base::Internal("no tensor has elements of a buffer of type " + std::to_string(type));
}

// Returns the computation of one element, which is the new one.
absl::StatusOr<xla::XlaComputation> Replacement(xla::PrimitiveType type) {
  xla::XlaBuilder builder("replace");
  const xla::Shape element = xla::ShapeUtil::MakeShape(type, {});
  xla::Parameter(&builder, 0, element, "before");
  return builder.Build(xla::Parameter(&builder, 1, element, "after"));
}

xla::ScatterDimensionNumbers RowNumbers(size_t rank) {
  xla::ScatterDimensionNumbers numbers;
  for (size_t i = 1; i < rank; ++i) numbers.add_update_window_dims(static_cast<int64_t>(i));
  numbers.add_inserted_window_dims(0);
  numbers.add_scatter_dims_to_operand_dims(0);
  numbers.set_index_vector_dim(1);
  return numbers;
}

// Returns the program that writes `rows` rows.
base::StatusOr<std::string> ScatterProgram(const pjrt::HostTensor& tensor, int64_t rows) {
  const base::StatusOr<xla::PrimitiveType> type = ElementType(tensor.type);
  if (!type.ok()) return type.status();
  const xla::Shape table_shape = xla::ShapeUtil::MakeShape(type.value(), tensor.dims);
  std::vector<int64_t> row_dims = tensor.dims;
  row_dims.front() = rows;
  xla::XlaBuilder builder("scatter");
  const std::vector<xla::XlaOp> block =
      Unpack({TensorLayout(xla::ShapeUtil::MakeShape(xla::S32, {rows})),
              TensorLayout(xla::ShapeUtil::MakeShape(type.value(), row_dims))},
             &builder);
  const xla::XlaOp table = xla::Parameter(&builder, 1, table_shape, "table");
  const auto replacement = Replacement(type.value());
  MILLPOND_RETURN_IF_TF_ERROR(replacement.status(), kDoing);
  const xla::XlaOp written =
      xla::Scatter(table, block[0], block[1], *replacement, RowNumbers(row_dims.size()),
                   /*indices_are_sorted=*/true, /*unique_indices=*/true);
  builder.SetUpAlias({}, 1, {});
  const auto program = builder.Build(written);
  MILLPOND_RETURN_IF_TF_ERROR(program.status(), kDoing);
  std::string serialized;
  // Equal programs have equal bytes, because an executable is found by them.
  if (tensorflow::SerializeToStringDeterministic(program->proto(), &serialized)) return serialized;
  return base::Internal("a program of XLA cannot be serialized");
}

}  // namespace

base::StatusOr<std::map<int64_t, std::string>> ScatterPrograms(const pjrt::HostTensor& tensor) {
  std::map<int64_t, std::string> programs;
  for (const int64_t rows : pjrt::RowScatter::SizesFor(tensor)) {
    base::StatusOr<std::string> hlo = ScatterProgram(tensor, rows);
    if (!hlo.ok()) return hlo.status();
    programs[rows] = std::move(hlo.value());
  }
  return programs;
}

}  // namespace millpond::tf
