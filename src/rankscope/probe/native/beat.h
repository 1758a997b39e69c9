/* The state that Python's functions and the shortcuts share, and the page that they write to. */

#ifndef RANKSCOPE_BEAT_H
#define RANKSCOPE_BEAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "tensors.h"

#include <stdint.h>
#include <string.h>
#include <time.h>

#define MOST_KEPT 8 /* as in batches.py */

typedef struct {
    PyObject_HEAD
    char full, deferring, loss_is_finite;
    long long data_ns;
    unsigned long long due, optimizer, loader, loader_number;
    long long loader_site, batch_step;
    PyObject *losses, *inputs, *batch, *place;
    /* Inputs of the passes before, as many as are held; a ring. */
    PyObject *kept[MOST_KEPT];
    long long kept_step[MOST_KEPT];
    int held, next;
    /* The parts of `place`. */
    unsigned long long site;
    long above, lasti, between, outer_lasti;
    PyObject *code, *outer_code;
    /* The page. */
    Py_buffer page;
    uint64_t *words;
    Py_ssize_t counters, loader_word, ring, slots, call_words, most_tensors, checksum_every;
    unsigned long long waiting, gave;
    /* Torch's, by `watch`. */
    PyTypeObject *tensor;
    Describe describe;
} Beat;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void replace(PyObject **place, PyObject *value) {
    PyObject *before = *place;
    Py_INCREF(value);
    *place = value;
    Py_XDECREF(before);
}

static PyObject *EMPTY;

/* The inputs of a pass have been used: they take the place of the oldest that are kept. */
static void end_pass(Beat *beat, long long step) {
    if (beat->inputs == EMPTY) {
        return;
    }
    PyObject *oldest = beat->inputs;
    if (beat->held > 0) {
        oldest = beat->kept[beat->next];
        beat->kept[beat->next] = beat->inputs;
        beat->kept_step[beat->next] = step;
        beat->next = (beat->next + 1) % beat->held;
    }
    beat->inputs = Py_NewRef(EMPTY);
    Py_XDECREF(oldest); /* last: what goes with it may come back here */
}

static PyObject *beat_pass_over(Beat *beat, PyObject *number) {
    long long step = PyLong_AsLongLong(number);
    if (step == -1 && PyErr_Occurred()) {
        return NULL;
    }
    end_pass(beat, step);
    Py_RETURN_NONE;
}

/* The newest stay. */
static void hold(Beat *beat, int passes) {
    PyObject *kept[MOST_KEPT];
    long long steps[MOST_KEPT];
    int count = 0;
    for (int at = 0; at < beat->held; at++) {
        int place = (beat->next + at) % beat->held;
        if (beat->kept[place] != NULL) {
            kept[count] = beat->kept[place];
            steps[count++] = beat->kept_step[place];
        }
    }
    int dropped = count > passes ? count - passes : 0;
    for (int at = 0; at < MOST_KEPT; at++) {
        beat->kept[at] = dropped + at < count ? kept[dropped + at] : NULL;
        beat->kept_step[at] = dropped + at < count ? steps[dropped + at] : 0;
    }
    beat->held = passes;
    beat->next = passes > 0 ? (count - dropped) % passes : 0;
    for (int at = 0; at < dropped; at++) {
        Py_DECREF(kept[at]); /* last: what goes with it may come back here */
    }
}

static PyObject *beat_hold(Beat *beat, PyObject *number) {
    long passes = PyLong_AsLong(number);
    if (passes == -1 && PyErr_Occurred()) {
        return NULL;
    }
    passes = passes < 0 ? 0 : passes > MOST_KEPT ? MOST_KEPT : passes;
    if (passes != beat->held) {
        hold(beat, (int)passes);
    }
    Py_RETURN_NONE;
}

static PyObject *beat_get_kept(Beat *beat, void *unused) {
    PyObject *found = PyList_New(0);
    for (int at = 0; found != NULL && at < beat->held; at++) {
        PyObject *inputs = beat->kept[(beat->next + at) % beat->held];
        if (inputs == NULL) {
            continue;
        }
        PyObject *one = Py_BuildValue("LO", beat->kept_step[(beat->next + at) % beat->held], inputs);
        if (one == NULL || PyList_Append(found, one) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(one);
    }
    return found;
}

/* Of the counters: the time of the last change, steps, batches, calls. Of the loader: batches, number, state, time. */
enum { CHANGED, STEPS, BATCHES, CALLS };
enum { LOADER_BATCHES, LOADER_NUMBER, LOADER_STATE, LOADER_TIME };

static int beat_init(Beat *beat, PyObject *args, PyObject *keywords) {
    static char *names[] = {"counters", "loader",  "ring", "slots", "call_words", "most_tensors", "checksum_every",
                            "waiting",  "gave",    NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "nnnnnnnKK", names, &beat->counters, &beat->loader_word,
                                     &beat->ring, &beat->slots, &beat->call_words, &beat->most_tensors,
                                     &beat->checksum_every, &beat->waiting, &beat->gave)) {
        return -1;
    }
    beat->full = 1;
    replace(&beat->losses, Py_None);
    replace(&beat->inputs, EMPTY);
    replace(&beat->batch, Py_None);
    replace(&beat->place, Py_None);
    return 0;
}

static void beat_dealloc(Beat *beat) {
    Py_XDECREF(beat->losses);
    Py_XDECREF(beat->inputs);
    Py_XDECREF(beat->batch);
    Py_XDECREF(beat->place);
    for (int at = 0; at < MOST_KEPT; at++) {
        Py_XDECREF(beat->kept[at]);
    }
    Py_XDECREF(beat->tensor);
    if (beat->words != NULL) {
        PyBuffer_Release(&beat->page);
    }
    PyObject_Free(beat);
}

/* From the page that was written to before, if any, to another. */
static int move(PyObject *map, Py_ssize_t least, Py_buffer *page, uint64_t **words) {
    Py_buffer next;
    if (PyObject_GetBuffer(map, &next, PyBUF_WRITABLE) < 0) {
        return -1;
    }
    if (next.len < least) {
        PyBuffer_Release(&next);
        PyErr_SetString(PyExc_ValueError, "the page is too short");
        return -1;
    }
    if (*words != NULL) {
        PyBuffer_Release(page);
    }
    *page = next;
    *words = next.buf;
    return 0;
}

static PyObject *beat_use(Beat *beat, PyObject *map) {
    Py_ssize_t least = 8 * (beat->ring + beat->slots * beat->call_words);
    return move(map, least, &beat->page, &beat->words) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *beat_watch(Beat *beat, PyObject *torch) {
    PyObject *tensor = PyObject_GetAttrString(torch, "Tensor");
    if (tensor == NULL) {
        return NULL;
    }
    beat->describe = describe_of(tensor);
    replace((PyObject **)&beat->tensor, tensor);
    Py_DECREF(tensor);
    Py_RETURN_NONE;
}

static PyObject *beat_get_place(Beat *beat, void *unused) {
    Py_INCREF(beat->place);
    return beat->place;
}

static int beat_set_place(Beat *beat, PyObject *place, void *unused) {
    unsigned long long site;
    long above, lasti, between, outer_lasti;
    PyObject *code, *outer_code;
    if (place == NULL || !PyTuple_Check(place)) {
        PyErr_SetString(PyExc_TypeError, "a place is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(place, "KlOllOl", &site, &above, &code, &lasti, &between, &outer_code, &outer_lasti)) {
        return -1;
    }
    replace(&beat->place, place); /* it holds the two codes */
    beat->site = site;
    beat->above = above;
    beat->code = code;
    beat->lasti = lasti;
    beat->between = between;
    beat->outer_code = outer_code;
    beat->outer_lasti = outer_lasti;
    return 0;
}

static PyMemberDef beat_members[] = {
    {"full", T_BOOL, offsetof(Beat, full), 0, NULL},
    {"deferring", T_BOOL, offsetof(Beat, deferring), 0, NULL},
    {"due", T_ULONGLONG, offsetof(Beat, due), 0, NULL},
    {"data_ns", T_LONGLONG, offsetof(Beat, data_ns), 0, NULL},
    {"optimizer", T_ULONGLONG, offsetof(Beat, optimizer), 0, NULL},
    {"loader", T_ULONGLONG, offsetof(Beat, loader), 0, NULL},
    {"loader_number", T_ULONGLONG, offsetof(Beat, loader_number), 0, NULL},
    {"loader_site", T_LONGLONG, offsetof(Beat, loader_site), 0, NULL},
    {"losses", T_OBJECT_EX, offsetof(Beat, losses), 0, NULL},
    {"inputs", T_OBJECT_EX, offsetof(Beat, inputs), 0, NULL},
    {"batch", T_OBJECT_EX, offsetof(Beat, batch), 0, NULL},
    {"batch_step", T_LONGLONG, offsetof(Beat, batch_step), 0, NULL},
    {NULL},
};

static PyMethodDef beat_methods[] = {
    {"hold", (PyCFunction)beat_hold, METH_O, "Keep the inputs of so many passes alive from now on."},
    {"pass_over", (PyCFunction)beat_pass_over, METH_O, "The inputs of the pass have been used, in that step."},
    {"use", (PyCFunction)beat_use, METH_O, "Write to this page from now on."},
    {"watch", (PyCFunction)beat_watch, METH_O, "Read the tensors of this torch from now on."},
    {NULL},
};

static PyGetSetDef beat_properties[] = {
    {"kept", (getter)beat_get_kept, NULL, NULL, NULL},
    {"place", (getter)beat_get_place, (setter)beat_set_place, NULL, NULL},
    {NULL},
};

static PyTypeObject BeatType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rankscope.probe._quick.Beat",
    .tp_basicsize = sizeof(Beat),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)beat_init,
    .tp_dealloc = (destructor)beat_dealloc,
    .tp_methods = beat_methods,
    .tp_members = beat_members,
    .tp_getset = beat_properties,
};

#endif
