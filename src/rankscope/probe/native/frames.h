/* Where in the program a call comes from. */

#ifndef RANKSCOPE_FRAMES_H
#define RANKSCOPE_FRAMES_H

#include "beat.h"

#include <frameobject.h>

static long instruction(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame);
#else
    return frame->f_lasti < 0 ? frame->f_lasti : 2L * frame->f_lasti;
#endif
}

static int is_at(PyFrameObject *frame, PyObject *code, long lasti) {
    PyCodeObject *own = PyFrame_GetCode(frame);
    Py_DECREF(own); /* the frame holds it */
    return (PyObject *)own == code && instruction(frame) == lasti;
}

#endif
