# SPDX-License-Identifier: Apache-2.0
"""The demo: real models, trained by real processes over shaped links. See docs/demo.md."""
