#include "host/compute/dense_svd.hpp"

#include <Eigen/QR>
#include <Eigen/SVD>

namespace cbk::compute {
namespace {

template <typename T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

void orthonormalize(std::vector<float>& matrix, int64_t rows, int64_t columns) {
  Eigen::Map<RowMajor<float>> elements(matrix.data(), rows, columns);
  const Eigen::HouseholderQR<Eigen::MatrixXf> qr{Eigen::MatrixXf(elements)};
  Eigen::MatrixXf basis = Eigen::MatrixXf::Identity(rows, columns);
  basis.applyOnTheLeft(qr.householderQ());
  elements = basis;
}

Svd svd_of(const std::vector<double>& matrix, int64_t rows, int64_t columns) {
  const Eigen::Map<const RowMajor<double>> elements(matrix.data(), rows, columns);
  const Eigen::BDCSVD<Eigen::MatrixXd> found(Eigen::MatrixXd(elements),
                                             Eigen::ComputeThinU | Eigen::ComputeThinV);
  const int64_t count = std::min(rows, columns);
  Svd out{std::vector<double>(static_cast<size_t>(rows * count)),
          std::vector<double>(found.singularValues().begin(), found.singularValues().end()),
          std::vector<double>(static_cast<size_t>(count * columns))};
  Eigen::Map<RowMajor<double>>(out.left.data(), rows, count) = found.matrixU();
  Eigen::Map<RowMajor<double>>(out.right.data(), count, columns) = found.matrixV().transpose();
  return out;
}

}  // namespace cbk::compute
